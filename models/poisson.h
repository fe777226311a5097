// `poisson`: prelude, a recurrent core and coda trained at heavy-tailed random depths (Geiping et al. 2025,
// arXiv:2502.05171). The state starts from noise; every step sees the prelude's output again.
#pragma once

#include "models/model.h"

namespace grt {

class Poisson final : public LanguageModel {
 public:
  explicit Poisson(const PoissonConfig& config);

  // Recorded, gradients flow through the last `backprop_steps` steps before an exit.
  void exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const override;
  DepthRange depths() const override { return {1, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"poisson", 1, config_.n_recurrences}; }
  std::vector<std::string> applications(int depth) const override { return recurrent_applications(config_, depth); }
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

 private:
  Tensor initial_state(const Shape& shape, const Pass& pass) const;
  Var recur(const Var& s, const Var& anchor, int r, const Pass& pass) const;

  PoissonConfig config_;
  std::vector<Block> prelude_, core_, coda_;
  std::optional<PairLinear> adapter_;
};

}  // namespace grt
