// AdamW over the flat blocks of a model's parameters, clipping, and the search for what is not finite.
//
// Over several ranks each has the whole model, and gradients of its own micro-batches. They are summed; then either
// every rank updates all weights, or each its share, whose moments it alone has (ZeRO-1, Rajbhandari et al. 2020,
// arXiv:1910.02054). Both give the same bits.
#pragma once

#include <string>

#include "core/comm.h"
#include "core/graphs.h"
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
  // Update `step` (0-based: it sets the bias correction) with the gradient scaled down to grad_clip. Returns the L2
  // norm that the gradient had over all parameters, each tensor once. If that is not finite, nothing is updated.
  double update(std::int64_t step, double lr);
  // Of all weights, on rank 0; nothing elsewhere.
  Moments whole_moments() const;

  void load(const fs::path& checkpoint);

 private:
  void update_own();

  Params& params_;
  OptimizerConfig config_;
  Comm& comm_;
  bool sharded_;
  Comm::Share own_;  // of the flat blocks: what this rank updates
  Moments moments_;  // of that

  // Of one update after the other, the same work: what changes lies on the device.
  LiveScalar<double> lr_, m_correction_, v_correction_;
  Tensor squares_, grad_scale_;  // (1) f64: the norm's square, the clipping coefficient
  Graphs graphs_;
};

// "gradient of coda.0.mlp.c_fc.weight (3 NaN or infinite of 65536)" for the first bad one in the order of the backward
// pass, which is the reverse of declaration but for the final norm; empty if all are finite.
std::string first_bad_gradient(const Params& params);
// The same for the weights themselves, in the order of declaration.
std::string first_bad_weight(const Params& params);
// The same as the end of an error about a result: "the first bad weight: ...", or that all weights are finite.
std::string blame_weights(const Params& params);

}  // namespace grt
