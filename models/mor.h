// `mor`: Mixture-of-Recursions with expert choice (Bae et al. 2025, arXiv:2507.10524). Every step of the recurrence has
// a router, which passes on some of the tokens that the step before it passed on.
#pragma once

#include "models/recurrent.h"

namespace grt {

// k_r, the tokens of a sequence of `length` that step r = 1..R takes under top-k routing.
std::int64_t mor_capacity(std::int64_t length, int r, int R);

class Mor final : public RecurrentModel {
 public:
  explicit Mor(const MorConfig& config);

  // Routing is by top-k over each sequence, which looks ahead, or causal (Pass::causal_routing), for inference alone.
  Unrolled unroll(const Tensor& tokens, const Pass& pass) const override;
  DepthRange depths() const override { return {1, config_.n_recurrences, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"fixed", 1, config_.n_recurrences}; }
  std::vector<Routing> routings() const override;
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

  // Cross-entropy + router_aux_weight times the sum of the routers' losses, under top-k routing.
  Var loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const override;

 private:
  struct Router {  // (..., d) -> (..., 1): one layer, or two with gelu between them
    std::vector<Linear> layers;
    Gelu kind;
    Router(const Scope& s, const MorConfig& c);
    Var operator()(const Var& x) const;
  };
  using Positions = std::vector<std::int32_t>;  // rows of a pass

  Unrolled routed_by_top_k(const Tensor& tokens, const Pass& pass, Var* aux) const;
  Var top_k_step(const Var& h, int r, Tensor& routed, const Pass& pass, Var* aux) const;
  Unrolled routed_causally(const Tensor& tokens, const Pass& pass) const;
  Var causal_step(const Tensor& h, int r, Positions& routed, KvCache& cache, int slot, const Pass& pass) const;

  MorConfig config_;
  std::vector<Router> routers_;  // of each step
};

}  // namespace grt
