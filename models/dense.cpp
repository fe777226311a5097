#include "models/dense.h"

namespace grt {

Dense::Dense(const DenseConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  h_ = blocks(root / "h", config.n_layers, backbone_->block(config.n_layers));
}

// The exit at depth l is the final norm of block l's output.
void Dense::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  Var h = embed(tokens, pass);
  int layer = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; layer < depth; ++layer) {
      const auto block = [this, h, layer, cache = pass.cache] { return h_[layer](h, cache, layer); };
      h = pass.recompute ? checkpoint(block) : block();
      pass.show("state", layer + 1, h);
    }
    visit(depth, backbone_->ln_f(h));
  }
}

std::vector<std::string> Dense::applications(int depth) const {
  std::vector<std::string> names;
  for (int i = 0; i < depth; ++i) names.push_back("h." + std::to_string(i));
  return names;
}

Flops Dense::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  return {depth * block_flops_paper(config_, context), 2 * d * config_.vocab_size,
          depth * block_flops_executed(config_, context), 2 * d * config_.padded_vocab_size};
}

}  // namespace grt
