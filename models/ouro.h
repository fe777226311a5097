// `ouro`: a looped language model in which every recurrence is an exit that is trained: a gate on each exit's state
// gives the probability of stopping there. Source: Zhu et al. 2025, arXiv:2510.25741.
#pragma once

#include "models/recurrent.h"

namespace grt {

class Ouro final : public RecurrentModel {
 public:
  explicit Ouro(const OuroConfig& config);

  Unrolled unroll(const Tensor& tokens, const Pass& pass) const override;
  // The mean over tokens of sum_t p_t CE_t - beta entropy(p), over the exits 1..depth. With pass.exit_gate_alone: how
  // well the gate tells whether going on to exit t lowers CE_t.
  Var loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const override;
  // "loss_expected": sum_t p_t CE_t of each token, over all exits.
  std::map<std::string, Tensor> further_losses(const Tensor& tokens, const Tensor& targets,
                                               const Pass& pass) const override;
  DepthRange depths() const override { return {1, config_.n_recurrences, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"fixed", 1, config_.n_recurrences}; }
  bool trains_exits() const override { return true; }
  bool reduces_kv() const override { return true; }
  double training_flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

  // The exit gate's logit, (..., d) -> (..., 1); its sigmoid is the probability of stopping at this exit once reached.
  Var gate_logit(const Var& z) const { return exit_gate_->operator()(z); }

 private:
  // What the exits 1..depth say of each of N tokens: gate logits and losses, (N, depth) each.
  struct Exits {
    Var gates, losses;
  };
  Exits run_exits(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const;

  OuroConfig config_;
  std::optional<Linear> exit_gate_;
};

}  // namespace grt
