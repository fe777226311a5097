// Training depth: fixed, or drawn anew for each forward pass as a pure function of a key.
#pragma once

#include <string>

#include "core/philox.h"

namespace grt {

struct DepthRule {
  std::string sampler = "fixed";  // "fixed" | "uniform"
  int lowest = 1;                 // r_min, for uniform
  int depth = 1;                  // R

  bool random() const { return sampler != "fixed"; }
  int draw(const NoiseKey& key) const;         // a depth; uniform: each of lowest..depth equally likely
  double mean() const;                         // its expectation
  void check_valid(int lowest_allowed) const;  // throws Error naming --depth-sampler or --depth
};

}  // namespace grt
