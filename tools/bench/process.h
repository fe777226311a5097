// Another program that answers each line with a JSON object: how measurements in separate processes take turns.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "core/json.h"

namespace grt {

class Process {
 public:
  // Starts `command` (a path and its arguments, no shell) with the NAME=VALUE entries of `environment` added. Its
  // messages go to our stderr. `name` is what errors call it.
  Process(std::string name, const std::vector<std::string>& command, const std::vector<std::string>& environment);
  ~Process();  // ends its input and waits for it
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Its next line. Throws Error if there is none, or if it has the key "error".
  Json read();
  Json ask();  // sends an empty line, and reads

 private:
  std::string name_;
  int pid_ = -1;
  int socket_ = -1;  // its stdin and stdout
  std::FILE* lines_ = nullptr;
};

std::string own_binary();  // this program's file

}  // namespace grt
