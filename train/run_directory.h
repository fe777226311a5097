// The directory of a run: whether a new run may begin in it.
#pragma once

#include "core/files.h"

namespace grt {

// While it lives, no other process trains into `out`, which must exist. Throws Error if one does; says so on stderr
// where the file system has no locks.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& out);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

// Makes `out` if need be. Throws Error when it is a checkpoint itself, and when it holds an earlier run (a checkpoint
// or a log), unless `overwrite`, which removes that run's files and nothing else.
void claim_directory(const fs::path& out, bool overwrite);

}  // namespace grt
