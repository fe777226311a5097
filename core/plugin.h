// Parts of the library that need more than every machine has are libraries of their own, opened when they are wanted:
// a program starts without them, and pays nothing for them.
#pragma once

#include <string>

namespace grt {

// An opened library. It stays loaded, since what it made may live as long as the program.
class Plugin {
 public:
  // libgrt_PART.so, which is looked for in ../lib/grt beside the running program and then where the system looks for
  // libraries; GRT_PART_LIBRARY (in capitals) in the environment names its file instead. Throws Error with the
  // system's reason, or for a file that was copied in part; `cure`, if not empty, ends the message.
  explicit Plugin(const std::string& part, const std::string& cure = "");

  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;  // throws Error if there is none

  std::string file_;
  void* library_;
};

// The file that the environment names for a part, or "".
std::string named_plugin(const std::string& part);

}  // namespace grt
