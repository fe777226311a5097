#include "models/rrt.h"

namespace grt {

Rrt::Rrt(const RrtConfig& config) : RecurrentModel(config), config_(config) {
  const Scope root{&params_, ""};
  const float scale = static_cast<float>(config.lora_alpha / config.lora_rank);
  for (int r = 0; r < config.n_recurrences; ++r) {
    std::vector<LowRankBlock>& own = lora_.emplace_back();
    for (int j = 0; j < config.n_core; ++j)
      own.emplace_back(root / "lora" / r / "core" / j, config.d_model, config.lora_rank, scale);
  }
}

// h <- core_r(h): in every Linear y = W x + (alpha / rho) B_r (A_r x); the LayerNorms are shared.
Var Rrt::recur(Var h, int r, const Pass& pass) const {
  pass.show("input", r + 1, h);
  for (int j = 0; j < config_.n_core; ++j) h = core_[j](h, pass.cache, core_slot(r) + j, lora_[r][j]);
  pass.show("proposal", r + 1, h);
  return h;
}

RecurrentModel::Unrolled Rrt::unroll(const Tensor& tokens, const Pass& pass) const {
  return {prelude(embed(tokens, pass), pass), [this, pass](const Var& h, int r) { return recur(h, r, pass); }};
}

// Executed: the four Linears of a block map d to 3d, d to d, d to 4d and 4d to d, so their low-rank parts multiply
// (4 + 2 + 5 + 5) d rho times. The paper's formula counts the blocks alone.
Flops Rrt::flops(std::int64_t context, int depth) const {
  Flops flops = RecurrentModel::flops(context, depth);
  flops.executed_body +=
      static_cast<double>(config_.n_core) * depth * 2 * 16 * static_cast<double>(config_.d_model) * config_.lora_rank;
  return flops;
}

}  // namespace grt
