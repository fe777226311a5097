// Training depth: fixed, or drawn anew for each forward pass as a pure function of a key.
#pragma once

#include <string>

#include "core/philox.h"

namespace grt {

struct DepthRule {
  std::string sampler = "fixed";  // "fixed" | "uniform" | "poisson"
  int lowest = 1;                 // r_min, for uniform
  int depth = 1;                  // R: the depth, the largest of uniform, the mean of poisson

  bool random() const { return sampler != "fixed"; }
  // A depth. uniform: each of lowest..depth equally likely. poisson: 1 + Poisson(lambda), where lambda is log-normal
  // with mean depth - 1 and sigma 0.5, cut at largest() (Geiping et al. 2025, arXiv:2502.05171).
  int draw(const NoiseKey& key) const;
  double mean() const;  // its expectation; of poisson before the cut
  int smallest() const;
  int largest() const;                         // poisson: 8 R, so that memory is bounded
  void check_valid(int lowest_allowed) const;  // throws Error naming --depth-sampler or --depth
};

}  // namespace grt
