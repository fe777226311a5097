// Weights that stand still while this object lives: Kernels::hold and let_go.
#pragma once

#include "ops/kernels.h"

namespace grt {

// A backend that keeps panels of held weights keeps those of a factor that is used more than once in a hold and has at
// most so many elements: reading larger panels costs as much as packing them does.
inline constexpr std::int64_t kMostHeld = 8 << 20;

// Rows of a copy in bf16 begin at multiples of 16 bytes, which is as much as a thread of a GPU reads at once.
constexpr std::int64_t rounded_stride(std::int64_t columns) { return (columns + 7) / 8 * 8; }

class Hold {
 public:
  explicit Hold(const Tensor& weights) : kernels_(weights.device().kernels()) { kernels_.hold(weights); }
  ~Hold() { kernels_.let_go(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  Kernels& kernels_;
};

}  // namespace grt
