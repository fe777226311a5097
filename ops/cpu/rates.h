// What this machine can do at best with this level's instructions: the rates that a benchmark's shares of the peak
// refer to. On the thread pool.
#pragma once

#include "core/tensor.h"

namespace grt::cpu {

double multiply_adds(DType type);  // as Level says
double reads(const Tensor& x);

}  // namespace grt::cpu
