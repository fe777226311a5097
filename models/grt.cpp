#include "models/grt.h"

namespace grt {
namespace {
enum NoiseKind : std::uint32_t { kStateNoise, kGateNoise, kNoiseKinds };
std::uint32_t site(int r, NoiseKind kind) { return static_cast<std::uint32_t>(r) * kNoiseKinds + kind; }
}  // namespace

Grt::Gate::Gate(const Scope& s, const GrtConfig& c)
    : ln_state(s / "ln_state", c.d_model, false),
      ln_anchor(s / "ln_anchor", c.d_model, false),
      fc_in(s / "fc_in", c.d_model, c.d_model),
      fc_out(s / "fc_out", c.d_model, c.d_model, true, {}, {c.gate_bias, 0}) {
  if (c.gate_concat_norm) ln_concat.emplace(s / "ln_concat", 2 * c.d_model, false);
}

Grt::Grt(const GrtConfig& config) : RecurrentModel(config), config_(config) {
  const Scope root{&params_, ""};
  if (config.use_injection) inject_.emplace(root / "inject", config.d_model, config.d_model);
  if (config.use_gate) gate_.emplace(root / "gate", config);
}

Grt::Anchor Grt::anchor(const Var& h_pre, const Var& embedding, const Pass& pass) const {
  Anchor a;
  if (inject_) a.injected = fix_injection(*inject_, embedding, h_pre, pass);
  if (gate_) {
    const Var normed = gate_->ln_anchor(h_pre);
    a.gate = gate_->ln_concat ? normed : gate_->fc_in.fix(normed);
  }
  return a;
}

// The state as step r reads it: itself, with noise for the core, normalized for the gate.
GateStep Grt::read(const Var& h, int r, const Pass& pass) const {
  const Var normed = gate_ && !pass.forced_gate ? gate_->ln_state(h) : Var();
  return {h, add_noise(h, state_noise(pass), pass.noise(site(r, kStateNoise))), normed};
}

Var Grt::gate_logit(const Var& normed, const Anchor& anchor) const {
  const Var hidden = gate_->ln_concat ? gate_->fc_in.whole((*gate_->ln_concat)(concat(normed, anchor.gate)))
                                      : gate_->fc_in(normed, anchor.gate);
  return gate_->fc_out(silu(hidden));
}

// One application of the core: x~ = inject([h + eps ; h_pre]), o = core(x~), h <- g h + (1 - g) o. Where a step is
// known to follow, the result is as that step reads it; else it has no more than h.
GateStep Grt::recur(const GateStep& state, const Anchor& anchor, int r, const Pass& pass) const {
  const auto& [h, noisy, normed] = state;
  const Var x = !inject_ ? noisy : (*inject_)(noisy, anchor.injected ? anchor.injected : inject_->fix(h));
  const Var o = core(x, r, pass);
  if (!gate_) return {o, {}, {}};
  if (pass.forced_gate) return {lerp(h, o, *pass.forced_gate), {}, {}};
  const Var a = gate_logit(normed, anchor);
  pass.show("gate_logit", r + 1, a);
  const GateNoise noise{static_cast<float>(config_.gate_temperature),
                        pass.training ? static_cast<float>(config_.gate_noise) : 0, pass.noise(site(r, kGateNoise))};
  if (r + 1 >= pass.steps) return {gate_mix(a, h, o, noise), {}, {}};
  return gate_step(a, h, o, gate_->ln_state.weight->var, noise,
                   {state_noise(pass), pass.noise(site(r + 1, kStateNoise))});
}

RecurrentModel::Unrolled Grt::unroll(const Tensor& tokens, const Pass& pass) const {
  const Var embedding = embed(tokens, pass), h_pre = prelude(embedding, pass);
  pass.show("anchor", 0, h_pre);
  const auto fixed = std::make_shared<Anchor>(anchor(h_pre, embedding, pass));
  Unrolled u{h_pre, [this, fixed, pass, last = GateStep()](const Var& h, int r) mutable {
               last = recur(last.normed && last.h.is(h) ? last : read(h, r, pass), *fixed, r, pass);
               return last.h;
             }};
  u.keep = [fixed](const Tensor& rows) {
    keep_rows(fixed->injected, rows);
    keep_rows(fixed->gate, rows);
  };
  return u;
}

// Executed: with the anchor hoisted, each recurrence multiplies d x d once for inject, twice for the gate (6 d^2), and
// the anchor's two products are made once. The paper counts 10 d^2 for each recurrence.
Flops Grt::flops(std::int64_t context, int depth) const {
  const double dd = static_cast<double>(config_.d_model * config_.d_model);
  const double gate_products = !config_.use_gate ? 0 : config_.gate_concat_norm ? 6 : 4;
  const double each = (config_.use_injection ? 2 : 0) + gate_products;
  const double once = (config_.use_injection ? 2 : 0) + (config_.use_gate && !config_.gate_concat_norm ? 2 : 0);
  const double paper_each = (config_.use_injection ? 4 : 0) + (config_.use_gate ? 6 : 0);
  Flops flops = RecurrentModel::flops(context, depth);
  flops.paper_body += depth * paper_each * dd;
  flops.executed_body += (depth * each + once) * dd;
  return flops;
}

}  // namespace grt
