// `grt`: the Gated Recurrent Transformer. Prelude, a shared core applied R times through a learned gate, coda.
#pragma once

#include "models/recurrent.h"

namespace grt {

class Grt final : public RecurrentModel {
 public:
  explicit Grt(const GrtConfig& config);

  Unrolled unroll(const Tensor& tokens, const Pass& pass) const override;
  DepthRange depths() const override { return {0, config_.n_recurrences}; }
  DepthRule default_depth_rule() const override { return {"uniform", config_.r_min, config_.n_recurrences}; }
  bool reinjects() const override { return config_.use_injection; }
  bool reduces_kv() const override { return true; }
  bool halts(HaltKind kind) const override {
    return kind == HaltKind::kl || (kind == HaltKind::gate && config_.use_gate);
  }
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

 private:
  // a = fc_out(silu(fc_in([LN_state(h) ; LN_anchor(h_pre)]))), the gate's logit times tau.
  struct Gate {
    LayerNorm ln_state, ln_anchor;
    std::optional<LayerNorm> ln_concat;
    PairLinear fc_in;
    Linear fc_out;
    Gate(const Scope& s, const GrtConfig& c);
  };
  // What depends on h_pre alone, and so is the same in every recurrence.
  struct Anchor {
    Var injected;  // inject[:, d:] h_pre; none where the state stands in its place
    Var gate;      // fc_in[:, d:] LN_anchor(h_pre); with gate_concat_norm LN_anchor(h_pre) itself
  };

  Anchor anchor(const Var& h_pre, const Var& embedding, const Pass& pass) const;
  GateStep read(const Var& h, int r, const Pass& pass) const;
  GateStep recur(const GateStep& state, const Anchor& anchor, int r, const Pass& pass) const;
  Var gate_logit(const Var& normed, const Anchor& anchor) const;

  float state_noise(const Pass& pass) const { return pass.training ? static_cast<float>(config_.state_noise) : 0; }

  GrtConfig config_;
  std::optional<PairLinear> inject_;
  std::optional<Gate> gate_;
};

}  // namespace grt
