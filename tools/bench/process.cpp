#include "tools/bench/process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace grt {
namespace {

// This process's environment with entries added; of two with one name the last counts.
std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=') + 1); };
  std::vector<std::string> all = added;
  for (char** entry = environ; *entry; ++entry) {
    bool replaced = false;
    for (const std::string& a : added) replaced |= std::string(*entry).starts_with(name_of(a));
    if (!replaced) all.emplace_back(*entry);
  }
  return all;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& t : texts) list.push_back(const_cast<char*>(t.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

Process::Process(std::string name, const std::vector<std::string>& command, const std::vector<std::string>& environment)
    : name_(std::move(name)) {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket for {}: {}", name_,
        std::strerror(errno));
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const std::vector<std::string> all = environment_with(environment);
  const int error =
      posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, pointers(command).data(), pointers(all).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  lines_ = fdopen(socket_, "r");
  if (error == 0) return;
  std::fclose(lines_);
  fail("{}: cannot start {}: {}", name_, command[0], std::strerror(error));
}

Process::~Process() {
  std::fclose(lines_);
  waitpid(pid_, nullptr, 0);
}

Json Process::read() {
  std::string line;
  for (int c; (c = std::fgetc(lines_)) != EOF && c != '\n';) line += static_cast<char>(c);
  check(!line.empty(), "{} ended early; its message is above", name_);
  Json answer = parse_json(line, name_);
  check(!answer.contains("error"), "{}: {}", name_, answer.value("error", ""));
  return answer;
}

Json Process::ask() {
  send(socket_, "\n", 1, MSG_NOSIGNAL);  // to one that has ended it is lost, and read() says so
  return read();
}

std::string own_binary() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

}  // namespace grt
