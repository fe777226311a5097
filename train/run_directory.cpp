#include "train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "train/checkpoint.h"

namespace grt {

DirectoryLock::DirectoryLock(const fs::path& out) {
  const fs::path file = out / ".lock";
  fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  check(fd_ >= 0, "{}: cannot be opened: {}", file.string(), std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  if (reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK) {  // a network's file system, often
    fmt::print(stderr, "{}: cannot be locked: {}; see that no other process trains into it\n", out.string(),
               std::strerror(reason));
    return;
  }
  close(fd_);
  check(reason != EWOULDBLOCK, "--out {}: another process is training into it", out.string());
  fail("{}: cannot be locked: {}", file.string(), std::strerror(reason));
}

DirectoryLock::~DirectoryLock() { close(fd_); }

void claim_directory(const fs::path& out, bool overwrite) {
  make_directories(out);
  check(!is_checkpoint(out), "--out {}: is a checkpoint, which a run's directory cannot be", out.string());
  std::vector<fs::path> earlier;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (step_number(name) || name.starts_with(".step-") || name == "latest" || name == "best" ||
        name == "train.jsonl" || name == "train.csv")
      earlier.push_back(entry.path());
  }
  if (earlier.empty()) return;
  const bool can_go_on = fs::exists(out / "latest");
  check(overwrite, "--out {}: holds an earlier run ({}{}); use {}--overwrite to remove it", out.string(),
        earlier.front().filename().string(), can_go_on ? "" : ", but no file `latest`",
        can_go_on ? "--resume to go on with it or " : "");
  // What names a checkpoint goes before the checkpoint.
  for (const char* pointer : {"latest", "best"}) fs::remove(out / pointer);
  for (const fs::path& path : earlier) fs::remove_all(path);
}

}  // namespace grt
