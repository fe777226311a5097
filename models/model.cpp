#include "models/model.h"

#include <cmath>

#include "models/dense.h"
#include "models/grt.h"
#include "models/mor.h"
#include "models/ouro.h"
#include "models/poisson.h"
#include "models/rrt.h"

namespace grt {
namespace {
constexpr const char* kArchitectures = "dense, grt, poisson, mor, rrt or ouro";
}  // namespace

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
  return head_loss(hidden(tokens, depth, pass), targets, pass);
}

Var LanguageModel::head_loss(const Var& z, const Tensor& targets, const Pass& pass) const {
  const Var& head = backbone_->wte->var;
  if (!pass.teacher) return cross_entropy(z, head, targets, config().vocab_size);
  return distillation(z, head, targets, pass.teacher->z, pass.teacher->head, config().vocab_size, pass.teacher->rule);
}

// Routing is causal, as where text is generated: a teacher must not see the tokens it is asked for.
Teacher LanguageModel::teach(const Tensor& tokens, const Distillation& rule) const {
  return {hidden(tokens, depths().full, {.causal_routing = true}).value(), backbone_->wte->var.value(), rule};
}

std::map<std::string, Tensor> LanguageModel::further_losses(const Tensor&, const Tensor&, const Pass&) const {
  return {};
}

double LanguageModel::training_flops(std::int64_t context, int depth) const {
  const Flops forward = flops(context, depth);
  return 3 * (forward.executed_body + forward.executed_head);
}

Tensor LanguageModel::logits(const Tensor& z) const { return linear(z, Var(backbone_->wte->var.value())).value(); }

Tensor LanguageModel::losses(const Tensor& z, const Tensor& targets) const {
  return token_losses(z, Var(backbone_->wte->var.value()), targets, config().vocab_size).value();
}

void LanguageModel::check_depth(int depth, const char* what) const {
  const auto [lowest, full, highest] = depths();
  if (highest == kAnyDepth)
    check(lowest <= depth && depth <= highest, "{} {}: this model has exits at {} and deeper, up to {}", what, depth,
          lowest, highest);
  else
    check(lowest <= depth && depth <= highest, "{} {}: this model has exits at {}..{}", what, depth, lowest, highest);
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
  check(it != json.end() && it->is_string(), "{}: the key \"architecture\" is missing: {}", where, kArchitectures);
  const std::string architecture = it->get<std::string>();
  if (architecture == "dense") return std::make_unique<Dense>(read_config<DenseConfig>(json, where));
  if (architecture == "grt") return std::make_unique<Grt>(read_config<GrtConfig>(json, where));
  if (architecture == "poisson") return std::make_unique<Poisson>(read_config<PoissonConfig>(json, where));
  if (architecture == "mor") return std::make_unique<Mor>(read_config<MorConfig>(json, where));
  if (architecture == "rrt") return std::make_unique<Rrt>(read_config<RrtConfig>(json, where));
  if (architecture == "ouro") return std::make_unique<Ouro>(read_config<OuroConfig>(json, where));
  fail("{}: architecture must be {}, not \"{}\"", where, kArchitectures, architecture);
}

}  // namespace grt
