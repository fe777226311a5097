// The levels of the CPU backend: ops/cpu/*.cpp is compiled once for each instruction set, and a level is what such a
// compilation offers. Which one works is chosen when it is first asked for; everything else is compiled for any CPU.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ops/kernels.h"

namespace grt::cpu {

enum class Isa { portable, avx2, avx512, avx512bf16 };
std::string name_of(Isa isa);

struct Level {
  Isa isa;
  // Products of f32 tensors are computed in `products`, f32 or bf16.
  std::unique_ptr<Kernels> (*kernels)(DType products);
  // Runs multiply-adds of `type`, f32 or bf16, on registers alone: floating-point operations done.
  double (*multiply_adds)(DType type);
  double (*reads)(const Tensor& x);  // reads all of x (f32): bytes read
};

// Defined once for each level, in ops/cpu/level.cpp.
template <Isa isa>
const Level& level_of();

std::span<const Isa> built();  // in ascending order; the first runs everywhere
bool runs_here(Isa isa);
bool pays_here(Isa isa);         // is a level that runs here faster than those below it?
const Level& level_of(Isa isa);  // of a level that is built

// The highest level that is built, runs and pays here, or the one that the environment's GRT_ISA names. Throws Error
// naming GRT_ISA if there is none such.
const Level& level();

// The level for a value of GRT_ISA, empty for none.
Isa choose(const std::string& wanted);

}  // namespace grt::cpu
