// What this machine can do at best: the rates that a benchmark's shares of the peak refer to. Measured on the thread
// pool, with the instructions that the kernels use.
#pragma once

#include "core/tensor.h"

namespace grt::cpu {

// Multiply-adds on registers alone: floating-point operations done (two for each multiply-add).
double run_multiply_adds();

// The same of bf16 factors added to f32 sums: 0 where the level in use has no instruction for it.
double run_bf16_multiply_adds();

// Reads all of x (f32): bytes read.
double run_reads(const Tensor& x);

}  // namespace grt::cpu
