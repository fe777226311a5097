// What this machine can do at best: the rates that a benchmark's shares of the peak refer to. Measured on the thread
// pool, at the vector width that the kernels are compiled for.
#pragma once

#include "core/tensor.h"

namespace grt::cpu {

// Multiply-adds on registers alone: floating-point operations done (two for each multiply-add).
double run_multiply_adds();

// The same in products of pairs of bf16 numbers that are added to f32 sums (vdpbf16ps), four operations for each sum: 0
// where the CPU has no such instruction.
double run_bf16_multiply_adds();

// Reads all of x (f32): bytes read.
double run_reads(const Tensor& x);

}  // namespace grt::cpu
