// The one level of a build for another machine than x86-64.
#include "ops/cpu/host/level.h"

namespace grt::cpu {

std::span<const Isa> built() {
  static constexpr Isa kAll[] = {Isa::portable};
  return kAll;
}

bool runs_here(Isa isa) { return isa == Isa::portable; }
bool pays_here(Isa) { return true; }

const Level& level_of(Isa) { return level_of<Isa::portable>(); }

}  // namespace grt::cpu
