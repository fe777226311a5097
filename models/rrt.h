// `rrt`: the Relaxed Recursive Transformer. A shared core applied R times, in which every recurrence adds a low-rank
// part of its own to each weight. Source: Bae et al. 2024, arXiv:2410.20672.
#pragma once

#include "models/recurrent.h"

namespace grt {

class Rrt final : public RecurrentModel {
 public:
  explicit Rrt(const RrtConfig& config);

  Unrolled unroll(const Tensor& tokens, const Pass& pass) const override;
  DepthRange depths() const override { return {1, config_.n_recurrences, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"fixed", 1, config_.n_recurrences}; }
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

 private:
  Var recur(Var h, int r, const Pass& pass) const;

  RrtConfig config_;
  std::vector<std::vector<LowRankBlock>> lora_;  // of recurrence r, core block j
};

}  // namespace grt
