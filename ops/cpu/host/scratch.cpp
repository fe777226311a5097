#include "ops/cpu/host/scratch.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace grt::cpu {
namespace {

std::atomic<std::size_t> growths = 0;

}  // namespace

Scratch::~Scratch() { std::free(memory_); }

std::size_t Scratch::system_calls() { return growths.load(std::memory_order_relaxed); }

void* Scratch::grown(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes <= bytes_) return memory_;
  std::free(std::exchange(memory_, nullptr));
  bytes_ = 0;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_ = std::aligned_alloc(kHugePage, rounded);
  check(memory_ != nullptr, "no memory for {} bytes of scratch", rounded);
  growths.fetch_add(1, std::memory_order_relaxed);
  bytes_ = rounded;
  madvise(memory_, bytes_, MADV_HUGEPAGE);  // advice only: nothing depends on its success
  return memory_;
}

}  // namespace grt::cpu
