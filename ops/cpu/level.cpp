// What this compilation of ops/cpu/ offers the rest of the program: the only name of it that is visible there.
#include "ops/cpu/cpu.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/rates.h"

namespace grt::cpu {
namespace {

std::unique_ptr<Kernels> make_kernels(DType products) { return std::make_unique<CpuKernels>(products); }

constexpr Level kLevel{kIsa, make_kernels, multiply_adds, reads};

}  // namespace

template <>
const Level& level_of<kIsa>() {
  return kLevel;
}

}  // namespace grt::cpu
