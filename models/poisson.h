// `poisson`: prelude, a recurrent core and coda trained at heavy-tailed random depths (Geiping et al. 2025,
// arXiv:2502.05171). The state starts from noise; every step sees the prelude's output again.
#pragma once

#include "models/recurrent.h"

namespace grt {

class Poisson final : public RecurrentModel {
 public:
  explicit Poisson(const PoissonConfig& config);

  Unrolled unroll(const Tensor& tokens, const Pass& pass) const override;
  Var finish(const Var& s, int depth, const Pass& pass) const override;  // ln_f, coda, ln_f
  DepthRange depths() const override { return {1, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"poisson", 1, config_.n_recurrences}; }
  bool reinjects() const override { return true; }
  bool reduces_kv() const override { return true; }
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

 private:
  // Gradients flow through the last `backprop_steps` steps before an exit.
  bool recorded(int r, int depth) const override { return r >= depth - config_.backprop_steps; }
  Tensor initial_state(const Shape& shape, const Pass& pass) const;
  Var recur(const Var& s, const Var& anchor, int r, const Pass& pass) const;

  PoissonConfig config_;
  std::optional<PairLinear> adapter_;
};

}  // namespace grt
