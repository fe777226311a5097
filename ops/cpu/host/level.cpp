#include "ops/cpu/host/level.h"

#include <algorithm>
#include <cstdlib>

#include "core/device.h"
#include "core/error.h"
#include "ops/cpu/peak.h"

namespace grt::cpu {

std::string name_of(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512bf16:
      return "avx512bf16";
  }
  return "?";
}

Isa choose(const std::string& wanted) {
  Isa best = Isa::portable;
  std::string names;
  for (const Isa isa : built()) {
    if (!runs_here(isa)) continue;
    if (pays_here(isa)) best = isa;
    names += (names.empty() ? "" : ", ") + name_of(isa);
  }
  if (wanted.empty()) return best;
  for (const Isa isa : built())
    if (name_of(isa) == wanted && runs_here(isa)) return isa;
  fail("GRT_ISA: this program on this CPU runs {}, not \"{}\"", names, wanted);
}

const Level& level() {
  static const Level& chosen = [&]() -> const Level& {
    const char* const wanted = std::getenv("GRT_ISA");
    return level_of(choose(wanted ? wanted : ""));
  }();
  return chosen;
}

double run_multiply_adds() { return level().multiply_adds(DType::f32); }
double run_bf16_multiply_adds() { return level().isa == Isa::avx512bf16 ? level().multiply_adds(DType::bf16) : 0; }
double run_reads(const Tensor& x) { return level().reads(x); }

}  // namespace grt::cpu

namespace grt {

std::string cpu_level() { return cpu::name_of(cpu::level().isa); }

}  // namespace grt
