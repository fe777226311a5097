// Weights that stand still while this object lives: Kernels::hold and let_go.
//
// What is kept of them stays to the end of the outermost hold. Each hold begins a pass, for which uses are counted: the
// micro-batches of a step, or a forward pass and the backward pass that computes it again, share what is kept, but
// their repetition alone makes no weight a shared one.
#pragma once

#include "ops/kernels.h"

namespace grt {

// A backend that keeps panels of held weights keeps those of a factor that is used more than once in a pass and has at
// most so many elements: reading larger panels costs as much as packing them does.
inline constexpr std::int64_t kMostHeld = 8 << 20;

// Rows of a copy in bf16 begin at multiples of 16 bytes, which is as much as a thread of a GPU reads at once.
constexpr std::int64_t rounded_stride(std::int64_t columns) { return (columns + 7) / 8 * 8; }

class Hold {
 public:
  // With `recompute`, which is for less memory, a backend that would keep copies of all weights is not asked to.
  explicit Hold(const Tensor& weights, bool recompute = false) : kernels_(weights.device().kernels()) {
    if (recompute && kernels_.keeps() == Keeps::rounded) return;
    kernels_.hold(weights);
    holds_ = true;
  }
  ~Hold() {
    if (holds_) kernels_.let_go();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  Kernels& kernels_;
  bool holds_ = false;
};

}  // namespace grt
