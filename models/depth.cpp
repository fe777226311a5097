#include "models/depth.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace grt {
namespace {

constexpr double kSigma = 0.5;  // of ln lambda
constexpr int kLargestOverMean = 8;
constexpr double kRatePart = 500;  // exp(-500) is still a normal number

// Poisson(rate) by inversion, the rate in parts of at most kRatePart with a uniform number each, from index 1 on.
int draw_poisson(const NoiseKey& key, double rate) {
  int n = 0;
  for (std::uint64_t part = 1; rate > 0; ++part, rate -= kRatePart) {
    const double r = std::min(rate, kRatePart), u = random_unit(key, part);
    double p = std::exp(-r), sum = p;
    for (int k = 1; u >= sum && sum + p * r / k > sum; ++k, ++n) sum += p *= r / k;
  }
  return n;
}

}  // namespace

int DepthRule::draw(const NoiseKey& key) const {
  if (!random()) return depth;
  if (sampler == "uniform")
    return lowest + static_cast<int>(random_below(key, 0, static_cast<std::uint64_t>(depth - lowest + 1)));
  const double normal = static_cast<double>(random_normal(key, 0));
  const double rate = std::exp(std::log(depth - 1.0) - kSigma * kSigma / 2 + kSigma * normal);
  return std::min(draw_poisson(key, rate) + 1, largest());
}

double DepthRule::mean() const { return sampler == "uniform" ? (lowest + depth) / 2.0 : depth; }

int DepthRule::smallest() const { return sampler == "fixed" ? depth : sampler == "uniform" ? lowest : 1; }

int DepthRule::largest() const { return sampler == "poisson" ? kLargestOverMean * depth : depth; }

void DepthRule::check_valid(int lowest_allowed) const {
  check(sampler == "fixed" || sampler == "uniform" || sampler == "poisson",
        "--depth-sampler: must be fixed, uniform or poisson, not \"{}\"", sampler);
  check(depth >= lowest_allowed, "--depth: must be at least {}, not {}", lowest_allowed, depth);
  check(sampler != "uniform" || lowest <= depth, "--depth: {} is below r_min {}", depth, lowest);
  check(sampler != "poisson" || depth >= 2,
        "--depth-sampler: poisson draws around a mean depth of 2 or more, not {}; fixed draws nothing", depth);
}

}  // namespace grt
