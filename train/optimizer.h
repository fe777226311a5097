// AdamW over the flat blocks of a model's parameters, clipping, and the search for what is not finite.
#pragma once

#include <string>

#include "nn/params.h"
#include "train/checkpoint.h"

namespace grt {

struct OptimizerConfig {
  double beta1, beta2, eps, weight_decay, grad_clip;
};

class Optimizer {
 public:
  Optimizer(Params& params, const OptimizerConfig& config);

  // L2 norm of the gradient over all parameters, each tensor once.
  double gradient_norm() const;
  // Update `step` (0-based: it sets the bias correction) with the gradient scaled down to grad_clip.
  void update(std::int64_t step, double lr, double gradient_norm);

  const Moments& moments() const { return moments_; }

 private:
  Params& params_;
  OptimizerConfig config_;
  Moments moments_;
};

// "gradient of coda.0.mlp.c_fc.weight (3 NaN or infinite of 65536)" for the first bad one in the order of the backward
// pass, which is the reverse of declaration but for the final norm; empty if all are finite.
std::string first_bad_gradient(const Params& params);
// The same for the weights themselves, in the order of declaration.
std::string first_bad_weight(const Params& params);
// The same as the end of an error about a result: "the first bad weight: ...", or that all weights are finite.
std::string blame_weights(const Params& params);

}  // namespace grt
