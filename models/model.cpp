#include "models/model.h"

#include <cmath>

#include "models/dense.h"
#include "models/grt.h"
#include "models/mor.h"
#include "models/ouro.h"
#include "models/poisson.h"
#include "models/rrt.h"
#include "ops/plan.h"

namespace grt {
namespace {
constexpr const char* kArchitectures = "dense, grt, poisson, mor, rrt or ouro";
}  // namespace

Var Backbone::embed(const Tensor& tokens, const KvCache* cache) const {
  if (!cache) return embedding(tokens, wte->var, wpe->var);
  const Tensor all =
      Tensor::empty({tokens.dim(0), tokens.dim(1), config.d_model}, wpe->var.value().dtype(), tokens.device());
  std::int64_t row = 0;
  for (const TokenRun& run : cache->runs()) {
    const Var part = embedding(tokens.range(row, {1, run.count}), wte->var, wpe->var, run.first());
    all.device().copy(all.rows(row, run.count).raw(), part.value().raw(), part.value().bytes());
    row += run.count;
  }
  return all;
}

BlockConfig Backbone::block(int applications) const {
  return {config.d_model, config.n_heads, config.bias, config.gelu_kind(), 0.02 / std::sqrt(2.0 * applications)};
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

Var LanguageModel::embed(const Tensor& tokens, const Pass& pass) const {
  if (pass.reinjection != Reinjection::prelude) {
    check(reinjects(), "reinjection: this {} model has nothing that enters each step again", config().architecture);
    check(!pass.training, "reinjection: in training it is the prelude's");
  }
  if (pass.cache) pass.cache->enter(tokens.shape());
  const Var h = backbone_->embed(tokens, pass.cache);
  pass.show("embedding", 0, h);
  return h;
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
  const std::unique_ptr<PlanDevice> device = open_plan();
  const std::unique_ptr<LanguageModel> twin = make_model(config_json(), "training_flops");
  twin->params().allocate(*device, DType::f32);
  twin->params().allocate_gradients();
  const Tensor tokens = Tensor::empty({1, context}, DType::i32, *device);
  Tape tape;
  Var loss;
  {
    Record on(&tape);
    loss = twin->loss(tokens, tokens, depth, {.training = true});
  }
  tape.backward(loss, Tensor::empty({1}, DType::f32, *device));
  return device->product_flops() / static_cast<double>(context);
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

void LanguageModel::check_kv(KvStrategy strategy) const {
  check(strategy == KvStrategy::full || reduces_kv(), "--kv: this {} model keeps all keys and values: full, not {}",
        config().architecture, name_of(strategy));
}

KvCache LanguageModel::make_cache(std::int64_t batch, std::int64_t capacity, int depth, KvStrategy strategy) const {
  check_depth(depth);
  check_kv(strategy);
  const BackboneConfig& c = config();
  return KvCache(kv_layout(depth), strategy, batch, c.n_heads, capacity, c.head_size(), params_.values().dtype(),
                 device());
}

std::unique_ptr<LanguageModel> make_model(const Json& json, const std::string& where) {
  check(json.is_object(), "{}: a model configuration must be a JSON object", where);
  const auto it = json.find("architecture");
  check(it != json.end(), "{}: the key \"architecture\" is missing: {}", where, kArchitectures);
  check(it->is_string(), "{}: architecture must be {}, not {}", where, kArchitectures, to_text(*it).substr(0, 100));
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
