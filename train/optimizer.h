// AdamW over the flat blocks of a model's parameters, clipping, and the search for what is not finite.
//
// Over several ranks each has the whole model, and gradients of its own micro-batches. They are summed; then either
// every rank updates all weights, or each its share, whose moments it alone has (ZeRO-1, Rajbhandari et al. 2020,
// arXiv:1910.02054). Both give the same bits.
#pragma once

#include <string>

#include "core/comm.h"
#include "nn/params.h"
#include "train/checkpoint.h"

namespace grt {

struct OptimizerConfig {
  double beta1, beta2, eps, weight_decay, grad_clip;
};

class Optimizer {
 public:
  // `sharded`: each rank keeps the moments of its share alone.
  Optimizer(Params& params, const OptimizerConfig& config, Comm& comm = alone(), bool sharded = false);

  // Everything up to load() is called by all ranks together.

  // Sums the gradients over ranks: of sharded moments those of this rank's share alone, which gather_gradients()
  // completes.
  void reduce_gradients();
  void gather_gradients();
  // L2 norm of the gradient over all parameters, each tensor once.
  double gradient_norm() const;
  // Update `step` (0-based: it sets the bias correction) with the gradient scaled down to grad_clip.
  void update(std::int64_t step, double lr, double gradient_norm);
  // Of all weights, on rank 0; nothing elsewhere.
  Moments whole_moments() const;

  void load(const fs::path& checkpoint);

 private:
  Params& params_;
  OptimizerConfig config_;
  Comm& comm_;
  bool sharded_;
  Comm::Share own_;  // of the flat blocks: what this rank updates
  Moments moments_;  // of that
};

// "gradient of coda.0.mlp.c_fc.weight (3 NaN or infinite of 65536)" for the first bad one in the order of the backward
// pass, which is the reverse of declaration but for the final norm; empty if all are finite.
std::string first_bad_gradient(const Params& params);
// The same for the weights themselves, in the order of declaration.
std::string first_bad_weight(const Params& params);
// The same as the end of an error about a result: "the first bad weight: ...", or that all weights are finite.
std::string blame_weights(const Params& params);

}  // namespace grt
