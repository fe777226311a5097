#include "models/depth.h"

#include "core/error.h"

namespace grt {

int DepthRule::draw(const NoiseKey& key) const {
  if (!random()) return depth;
  return lowest + static_cast<int>(random_below(key, 0, static_cast<std::uint64_t>(depth - lowest + 1)));
}

double DepthRule::mean() const { return random() ? (lowest + depth) / 2.0 : depth; }

void DepthRule::check_valid(int lowest_allowed) const {
  check(sampler == "fixed" || sampler == "uniform", "--depth-sampler: must be fixed or uniform, not \"{}\"", sampler);
  check(depth >= lowest_allowed, "--depth: must be at least {}, not {}", lowest_allowed, depth);
  check(!random() || lowest <= depth, "--depth: {} is below r_min {}", depth, lowest);
}

}  // namespace grt
