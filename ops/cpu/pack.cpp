// Scratch memory of the packed products: whole huge pages, so that panels of megabytes cost few TLB entries.
#include "ops/cpu/pack.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace grt::cpu {

Scratch::~Scratch() { std::free(memory_); }

void* Scratch::grown(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes <= bytes_) return memory_;
  std::free(std::exchange(memory_, nullptr));
  bytes_ = 0;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_ = std::aligned_alloc(kHugePage, rounded);
  check(memory_ != nullptr, "matmul: no memory for {} bytes of packed panels", rounded);
  bytes_ = rounded;
  madvise(memory_, bytes_, MADV_HUGEPAGE);  // advice only: nothing depends on its success
  return memory_;
}

}  // namespace grt::cpu
