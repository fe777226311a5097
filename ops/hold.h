// Weights that stand still while this object lives: Kernels::hold and let_go.
#pragma once

#include "ops/kernels.h"

namespace grt {

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
