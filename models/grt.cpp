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

Grt::Grt(const GrtConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
  if (config.use_injection) inject_.emplace(root / "inject", config.d_model, config.d_model);
  if (config.use_gate) gate_.emplace(root / "gate", config);
}

Grt::Anchor Grt::anchor(const Var& h_pre) const {
  Anchor a;
  if (inject_) a.injected = inject_->fix(h_pre);
  if (gate_) {
    const Var normed = gate_->ln_anchor(h_pre);
    a.gate = gate_->ln_concat ? normed : gate_->fc_in.fix(normed);
  }
  return a;
}

Var Grt::gate_logit(const Var& h, const Anchor& anchor) const {
  const Var state = gate_->ln_state(h);
  const Var hidden = gate_->ln_concat ? gate_->fc_in.whole((*gate_->ln_concat)(concat(state, anchor.gate)))
                                      : gate_->fc_in(state, anchor.gate);
  return gate_->fc_out(silu(hidden));
}

// One application of the core: x~ = inject([h + eps ; h_pre]), o = core(x~), h <- g h + (1 - g) o.
Var Grt::recur(const Var& h, const Anchor& anchor, int r, const Pass& pass) const {
  const float state_noise = pass.training ? static_cast<float>(config_.state_noise) : 0;
  const float gate_noise = pass.training ? static_cast<float>(config_.gate_noise) : 0;

  const Var noisy = add_noise(h, state_noise, pass.noise(site(r, kStateNoise)));
  const Var x = inject_ ? (*inject_)(noisy, anchor.injected) : noisy;
  const Var o = through(core_, x, pass.cache, config_.n_prelude + r * config_.n_core);
  if (!gate_) return o;
  if (pass.forced_gate) return lerp(h, o, *pass.forced_gate);
  return gate_mix(gate_logit(h, anchor), h, o,
                  {static_cast<float>(config_.gate_temperature), gate_noise, pass.noise(site(r, kGateNoise))});
}

void Grt::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  Var h = through(prelude_, backbone_->embed(tokens, pass.cache), pass.cache, 0, pass.recompute);
  const Anchor fixed = anchor(h);
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r) {
      const auto step = [this, h, fixed, r, pass] { return recur(h, fixed, r, pass); };
      h = pass.recompute ? checkpoint(step) : step();
    }
    const int first_slot = config_.n_prelude + depth * config_.n_core;
    visit(depth, backbone_->ln_f(through(coda_, h, pass.cache, first_slot, pass.recompute)));
  }
}

// Executed: with the anchor hoisted, each recurrence multiplies d x d once for inject, twice for the gate (6 d^2), and
// the anchor's two products are made once. The paper counts 10 d^2 for each recurrence.
Flops Grt::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model), dd = d * d;
  const double blocks = config_.n_prelude + static_cast<double>(config_.n_core) * depth + config_.n_coda;
  const double gate_products = !config_.use_gate ? 0 : config_.gate_concat_norm ? 6 : 4;
  const double each = (config_.use_injection ? 2 : 0) + gate_products;
  const double once = (config_.use_injection ? 2 : 0) + (config_.use_gate && !config_.gate_concat_norm ? 2 : 0);
  const double paper_each = (config_.use_injection ? 4 : 0) + (config_.use_gate ? 6 : 0);
  return {blocks * block_flops_paper(config_, context) + depth * paper_each * dd, 2 * d * config_.vocab_size,
          blocks * block_flops_executed(config_, context) + (depth * each + once) * dd,
          2 * d * config_.padded_vocab_size};
}

}  // namespace grt
