// For tests that every rank of `mpirun -np N grt_tests --test-suite=ranks` runs, all in step.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/comm.h"
#include "tests/support.h"

namespace grt::test {

// The ranks that were started; by itself, this process.
inline Comm& world() {
  static const std::unique_ptr<Comm> comm = open_comm();
  return *comm;
}

// A directory that all ranks know, and that lives as long as this object does on all of them.
class SharedDir {
 public:
  SharedDir() {
    if (world().rank() == 0) made_ = std::make_unique<TempDir>();
    std::vector<std::int64_t> letters(256);
    if (made_) std::copy_n(made_->path.string().begin(), made_->path.string().size(), letters.begin());
    world().sum(letters);
    std::string text(letters.begin(), letters.end());
    path = text.c_str();
  }
  ~SharedDir() { world().barrier(); }
  std::filesystem::path operator/(const std::string& name) const { return path / name; }
  std::filesystem::path path;

 private:
  std::unique_ptr<TempDir> made_;
};

// The same bits on all ranks?
inline bool same_on_all_ranks(const Tensor& t) {
  const Tensor first = t.clone();
  world().broadcast(first);
  std::int64_t different = same_bits(first, t) ? 0 : 1;
  world().sum(std::span(&different, 1));
  return different == 0;
}

}  // namespace grt::test
