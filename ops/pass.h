// How a gradient goes through an operation unchanged.
#pragma once

#include "autograd/tape.h"
#include "ops/kernels.h"

namespace grt {

// d(input) += dy: shares the memory where nothing was there, adds otherwise.
inline void pass(Kernels& k, const Sink& input, const Tensor& dy) {
  if (input.fresh())
    input.adopt(dy);
  else
    k.copy(input.into(), dy);
}

}  // namespace grt
