#include "models/model.h"

#include <cmath>

#include "models/dense.h"
#include "models/grt.h"
#include "models/mor.h"
#include "models/poisson.h"

namespace grt {

BlockConfig Backbone::block(int applications) const {
  return {config.d_model, config.n_heads, config.bias, config.gelu_kind(), 0.02 / std::sqrt(2.0 * applications)};
}

std::vector<std::string> recurrent_applications(const RecurrentConfig& c, int depth) {
  std::vector<std::string> names;
  const auto add = [&](const char* prefix, int n) {
    for (int i = 0; i < n; ++i) names.push_back(fmt::format("{}.{}", prefix, i));
  };
  add("prelude", c.n_prelude);
  for (int r = 0; r < depth; ++r) add("core", c.n_core);
  add("coda", c.n_coda);
  return names;
}

double block_flops_paper(const BackboneConfig& c, std::int64_t context) {
  const double d = static_cast<double>(c.d_model);
  return 24 * d * d + 4 * static_cast<double>(context) * d;
}

// A token at position t attends to t + 1 positions, (S + 1) / 2 on average.
double block_flops_executed(const BackboneConfig& c, std::int64_t context) {
  const double d = static_cast<double>(c.d_model);
  return 24 * d * d + 2 * static_cast<double>(context + 1) * d;
}

Var LanguageModel::hidden(const Tensor& tokens, int depth, const Pass& pass) const {
  Var z;
  exits(tokens, std::span(&depth, 1), pass, [&](int, const Var& exit) { z = exit; });
  return z;
}

Var LanguageModel::loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const {
  return cross_entropy(hidden(tokens, depth, pass), backbone_->wte->var, targets, config().vocab_size);
}

Tensor LanguageModel::logits(const Tensor& z) const { return linear(z, Var(backbone_->wte->var.value())).value(); }

Tensor LanguageModel::losses(const Tensor& z, const Tensor& targets) const {
  return token_losses(z, backbone_->wte->var.value(), targets, config().vocab_size);
}

void LanguageModel::check_depth(int depth) const {
  const auto [lowest, full, highest] = depths();
  if (highest == std::numeric_limits<int>::max())
    check(depth >= lowest, "depth {}: this model has exits at {} and deeper", depth, lowest);
  else
    check(lowest <= depth && depth <= highest, "depth {}: this model has exits at {}..{}", depth, lowest, highest);
}

KvCache LanguageModel::make_cache(std::int64_t batch, std::int64_t capacity, int depth) const {
  check_depth(depth);
  const BackboneConfig& c = config();
  return KvCache(static_cast<int>(applications(depth).size()), batch, c.n_heads, capacity, c.head_size(),
                 params_.values().dtype(), device());
}

std::unique_ptr<LanguageModel> make_model(const Json& json, const std::string& where) {
  check(json.is_object(), "{}: a model configuration must be a JSON object", where);
  const auto it = json.find("architecture");
  check(it != json.end() && it->is_string(), "{}: the key \"architecture\" is missing: dense, grt, poisson or mor",
        where);
  const std::string architecture = it->get<std::string>();
  if (architecture == "dense") return std::make_unique<Dense>(read_config<DenseConfig>(json, where));
  if (architecture == "grt") return std::make_unique<Grt>(read_config<GrtConfig>(json, where));
  if (architecture == "poisson") return std::make_unique<Poisson>(read_config<PoissonConfig>(json, where));
  if (architecture == "mor") return std::make_unique<Mor>(read_config<MorConfig>(json, where));
  fail("{}: architecture must be dense, grt, poisson or mor, not \"{}\"", where, architecture);
}

}  // namespace grt
