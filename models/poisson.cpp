#include "models/poisson.h"

namespace grt {
namespace {
constexpr std::uint32_t kInitialState = 0;  // the one site of its noise
constexpr float kInitialStd = 0.02f;
}  // namespace

Poisson::Poisson(const PoissonConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
  adapter_.emplace(root / "adapter", config.d_model, config.d_model);
}

// s^0 (B, T, d). In training every row has its own; otherwise all sequences have the same at the same position, so that
// neither the batch nor a cache makes a difference.
Tensor Poisson::initial_state(const Shape& shape, const Pass& pass) const {
  const DType dtype = params_.values().dtype();
  if (config_.initial_state == "zero") return Tensor::zeros(shape, dtype, device());
  const NoiseKey key = pass.noise(kInitialState);
  if (pass.training) return truncated_normal(shape, kInitialStd, key, 0, dtype, device());
  const Tensor one =
      truncated_normal({shape[1], shape[2]}, kInitialStd, key, pass.cache ? pass.cache->past : 0, dtype, device());
  const Tensor all = Tensor::empty(shape, dtype, device());
  for (std::int64_t b = 0; b < shape[0]; ++b)
    device().copy(all.range(b * one.numel(), one.shape()).raw(), one.raw(), one.bytes());
  return all;
}

// s <- core(adapter([s ; e])); the half of e is in `anchor`.
Var Poisson::recur(const Var& s, const Var& anchor, int r, const Pass& pass) const {
  return through(core_, (*adapter_)(s, anchor), pass.cache, config_.n_prelude + r * config_.n_core);
}

void Poisson::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  const Var e = through(prelude_, backbone_->embed(tokens, pass.cache), pass.cache, 0, pass.recompute);
  const Var anchor = adapter_->fix(e);
  Var s = initial_state(e.shape(), pass);
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r) {
      const Record record(r < depth - config_.backprop_steps ? nullptr : Tape::recording());
      const auto step = [this, s, anchor, r, pass] { return recur(s, anchor, r, pass); };
      s = pass.recompute ? checkpoint(step) : step();
    }
    const Var h =
        through(coda_, backbone_->ln_f(s), pass.cache, config_.n_prelude + depth * config_.n_core, pass.recompute);
    visit(depth, backbone_->ln_f(h));
  }
}

// The adapter is no part of the paper's formula. Executed: its product with e once, that with the state in each step.
Flops Poisson::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double blocks = static_cast<double>(applications(depth).size());
  return {blocks * block_flops_paper(config_, context), 2 * d * config_.vocab_size,
          blocks * block_flops_executed(config_, context) + (depth + 1) * 2 * d * d, 2 * d * config_.padded_vocab_size};
}

}  // namespace grt
