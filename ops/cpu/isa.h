// The instruction set that this compilation of ops/cpu/ is for. The one place that reads it: GRT_ISA comes from
// CMakeLists.txt, with the flags that make the compiler use the same instructions.
#pragma once

#include "ops/cpu/host/level.h"

namespace grt::cpu {

inline constexpr Isa kIsa = Isa::GRT_ISA;

inline constexpr bool kWide = kIsa == Isa::avx512 || kIsa == Isa::avx512bf16;
inline constexpr int kVectorBytes = kWide ? 64 : kIsa == Isa::avx2 ? 32 : 16;  // of a register

}  // namespace grt::cpu
