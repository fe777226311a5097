// The levels of a build for x86-64.
#include "ops/cpu/host/level.h"

namespace grt::cpu {

std::span<const Isa> built() {
  static constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16};
  return kAll;
}

// What CMakeLists.txt compiles each level for; the system's support for the registers is part of the answer.
bool runs_here(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("x86-64-v3");
    case Isa::avx512:
      return __builtin_cpu_supports("x86-64-v4");
    case Isa::avx512bf16:
      return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

// avx512bf16 on no CPU of Intel's: their cores without AMX multiply bf16 pairs at half the rate of f32 (AMD's at
// twice), so that rounding to f32 is faster, and gives the same bits; those with AMX are not told apart.
bool pays_here(Isa isa) { return isa != Isa::avx512bf16 || !__builtin_cpu_is("intel"); }

const Level& level_of(Isa isa) {
  switch (isa) {
    case Isa::portable:
      break;
    case Isa::avx2:
      return level_of<Isa::avx2>();
    case Isa::avx512:
      return level_of<Isa::avx512>();
    case Isa::avx512bf16:
      return level_of<Isa::avx512bf16>();
  }
  return level_of<Isa::portable>();
}

}  // namespace grt::cpu
