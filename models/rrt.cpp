#include "models/rrt.h"

namespace grt {

Rrt::Rrt(const RrtConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
  const float scale = static_cast<float>(config.lora_alpha / config.lora_rank);
  for (int r = 0; r < config.n_recurrences; ++r) {
    std::vector<LowRankBlock>& own = lora_.emplace_back();
    for (int j = 0; j < config.n_core; ++j)
      own.emplace_back(root / "lora" / r / "core" / j, config.d_model, config.lora_rank, scale);
  }
}

// h <- core_r(h): in every Linear y = W x + (alpha / rho) B_r (A_r x); the LayerNorms are shared.
Var Rrt::recur(Var h, int r, const KvCache* cache) const {
  for (int j = 0; j < config_.n_core; ++j)
    h = core_[j](h, cache, config_.n_prelude + r * config_.n_core + j, lora_[r][j]);
  return h;
}

void Rrt::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  Var h = through(prelude_, backbone_->embed(tokens, pass.cache), pass.cache, 0, pass.recompute);
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r) {
      const auto step = [this, h, r, cache = pass.cache] { return recur(h, r, cache); };
      h = pass.recompute ? checkpoint(step) : step();
    }
    const int first_slot = config_.n_prelude + depth * config_.n_core;
    visit(depth, backbone_->ln_f(through(coda_, h, pass.cache, first_slot, pass.recompute)));
  }
}

// Executed: the four Linears of a block map d to 3d, d to d, d to 4d and 4d to d, so their low-rank parts multiply
// (4 + 2 + 5 + 5) d rho times. The paper's formula counts the blocks alone.
Flops Rrt::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double core = static_cast<double>(config_.n_core) * depth;
  const double blocks = config_.n_prelude + core + config_.n_coda;
  return {blocks * block_flops_paper(config_, context), 2 * d * config_.vocab_size,
          blocks * block_flops_executed(config_, context) + core * 2 * 16 * d * config_.lora_rank,
          2 * d * config_.padded_vocab_size};
}

}  // namespace grt
