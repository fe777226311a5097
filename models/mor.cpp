#include "models/mor.h"

#include <algorithm>
#include <numeric>

namespace grt {
namespace {

Tensor index_of(std::span<const std::int32_t> positions, Device& device) {
  const Tensor t = Tensor::from<std::int32_t>({1, static_cast<std::int64_t>(positions.size())}, positions, device);
  device.sync();  // before the positions die
  return t;
}

// 0..time-1 for each sequence.
Tensor every_position(std::int64_t batch, std::int64_t time, Device& device) {
  std::vector<std::int32_t> all(batch * time);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i % time);
  const Tensor t = Tensor::from<std::int32_t>({batch, time}, all, device);
  device.sync();  // before `all` dies
  return t;
}

// The indices of the logits above 0, on the host.
std::vector<std::int32_t> positive(const Tensor& logits) {
  std::vector<std::int32_t> list;
  visit_real(logits.dtype(), [&]<class T>() {
    std::vector<T> host(logits.numel());
    logits.device().copy(host.data(), logits.raw(), logits.bytes());
    logits.device().sync();
    for (std::size_t i = 0; i < host.size(); ++i)
      if (host[i] > 0) list.push_back(static_cast<std::int32_t>(i));
  });
  return list;
}

// Rows of a pass over (B, T) tokens as the positions of each sequence, (B, k) with k of the one with most; -1 where
// another has fewer.
Tensor filled_up(const std::vector<std::int32_t>& routed, const Shape& tokens, Device& device) {
  std::vector<std::vector<std::int32_t>> positions(tokens[0]);
  for (const std::int32_t row : routed)
    positions[row / tokens[1]].push_back(static_cast<std::int32_t>(row % tokens[1]));
  std::size_t longest = 1;
  for (const auto& list : positions) longest = std::max(longest, list.size());
  std::vector<std::int32_t> filled;
  for (auto& list : positions) {
    list.resize(longest, -1);
    filled.insert(filled.end(), list.begin(), list.end());
  }
  const Tensor t = Tensor::from<std::int32_t>({tokens[0], static_cast<std::int64_t>(longest)}, filled, device);
  device.sync();  // before `filled` dies
  return t;
}

}  // namespace

std::int64_t mor_capacity(std::int64_t length, int r, int R) {
  return std::max<std::int64_t>(1, (R - r + 1) * length / R);
}

Mor::Router::Router(const Scope& s, const MorConfig& c) : kind(c.gelu_kind()) {
  if (c.router_type == "linear") {
    layers.emplace_back(s, c.d_model, 1, false);
  } else {
    layers.emplace_back(s / "fc", c.d_model, 2 * c.d_model, false);
    layers.emplace_back(s / "proj", 2 * c.d_model, 1, false);
  }
}

Var Mor::Router::operator()(const Var& x) const {
  const Var z = layers[0](x);
  return layers.size() == 1 ? z : layers[1](gelu(z, kind));
}

Mor::Mor(const MorConfig& config) : RecurrentModel(config), config_(config) {
  const Scope root{&params_, ""};
  for (int r = 0; r < config.n_recurrences; ++r) routers_.emplace_back(root / "router" / r, config);
}

RecurrentModel::Unrolled Mor::unroll(const Tensor& tokens, const Pass& pass) const {
  return pass.causal_routing ? routed_causally(tokens, pass) : routed_by_top_k(tokens, pass, nullptr);
}

std::vector<Routing> Mor::routings() const {
  return {{"topk", "with top-k routing, as in training", false},
          {"causal", "with causal routing, as in generation", true}};
}

Var Mor::loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const {
  check(!pass.causal_routing, "mor: the loss is that of top-k routing");
  Var aux, z;
  visit_exits(routed_by_top_k(tokens, pass, &aux), std::span(&depth, 1), pass, [&](int, const Var& exit) { z = exit; });
  return head_loss(z, targets, pass) + scale(aux, static_cast<float>(config_.router_aux_weight));
}

// --- top-k -----------------------------------------------------------------------------------------------------------

RecurrentModel::Unrolled Mor::routed_by_top_k(const Tensor& tokens, const Pass& pass, Var* aux) const {
  check(!pass.cache, "mor: top-k routing looks at the whole sequence; with a cache routing must be causal");
  const Tensor all = every_position(tokens.dim(0), tokens.dim(1), device());
  const auto step = [this, routed = all, pass, aux](const Var& h, int r) mutable {
    return top_k_step(h, r, routed, pass, aux);
  };
  return {prelude(embed(tokens, pass), pass), step, false};
}

// h[I] <- h[I] + g core(h[I]) for the I of step r + 1. `routed` (B, m), the positions that the step before took,
// becomes I. Every sequence takes equally many, so they stay one batch. The router's loss is added to *aux.
Var Mor::top_k_step(const Var& h, int r, Tensor& routed, const Pass& pass, Var* aux) const {
  const auto run = [&](std::function<Var()> f) { return pass.recompute ? checkpoint(std::move(f)) : f(); };
  const std::int64_t batch = routed.dim(0), before = routed.dim(1);
  const Var x = gather_rows(h, routed);
  const Var z = run([this, x, r] { return routers_[r](x); });

  pass.show("router_logit", r + 1, z);

  // g grows with z, which tells more values apart.
  const TopK top = top_k(z.value().view({batch, before}), mor_capacity(h.shape()[1], r + 1, config_.n_recurrences));
  routed = gather_rows(routed.view({batch, before, 1}), top.index).view(top.index.shape());
  pass.show("routed", r + 1, routed);
  if (aux) {
    const Var loss = bce_with_logits(z, top.chosen.view(z.shape()));
    *aux = *aux ? *aux + loss : loss;
  }

  const Var mine = gather_rows(x, top.index);
  const Var y = run([this, mine] { return through(core_, mine); });
  return gated_scatter(h, routed, gather_rows(z, top.index), y, static_cast<float>(config_.router_scale));
}

// --- causal ----------------------------------------------------------------------------------------------------------

// The first step takes all tokens, a later one those that the step before took and whose own logit is above 0. Nothing
// depends on tokens to come, and each sequence takes as many as it takes: their keys and values lie in a cache, in one
// for this step alone if none is given.
RecurrentModel::Unrolled Mor::routed_causally(const Tensor& tokens, const Pass& pass) const {
  check(!Tape::recording(), "mor: causal routing serves inference; it cannot be recorded on a tape");
  const Var h = prelude(embed(tokens, pass), pass);
  std::shared_ptr<KvCache> own;
  if (!pass.cache) {
    own = std::make_shared<KvCache>(KvLayout{.before = config_.n_core}, KvStrategy::full, tokens.dim(0),
                                    config_.n_heads, tokens.dim(1), config_.head_size(), h.value().dtype(), device());
    own->enter(tokens.shape());
  }
  Positions all(tokens.numel());
  std::iota(all.begin(), all.end(), 0);
  const auto step = [this, routed = all, own, pass](const Var& before, int r) mutable {
    for (std::int64_t b = 0; own && b < own->sequences(); ++b) own->forget(b, 0);
    const Var after = own ? causal_step(before.value(), r, routed, *own, 0, pass)
                          : causal_step(before.value(), r, routed, *pass.cache, core_slot(r), pass);
    if (pass.look) pass.show("routed", r + 1, filled_up(routed, before.shape(), device()));
    return after;
  };
  return {h, step, false};
}

// `routed`, the rows that the step before took, becomes this one's. The core's applications begin at `slot` of `cache`.
Var Mor::causal_step(const Tensor& h, int r, Positions& routed, KvCache& cache, int slot, const Pass& pass) const {
  if (routed.empty()) return h;
  const Tensor rows = h.view({1, h.shape().rows(), h.shape().last()});
  Var x = gather_rows(rows, index_of(routed, device())), z = routers_[r](x);
  if (r > 0) {
    pass.show("router_logit", r + 1, z);
    const Positions chosen = positive(z.value());
    Positions kept;
    for (const std::int32_t i : chosen) kept.push_back(routed[i]);
    routed = kept;
    if (routed.empty()) return h;
    const Tensor index = index_of(chosen, device());
    x = gather_rows(x, index);
    z = gather_rows(z, index);
  }
  cache.take(slot, routed);
  const Var y = through(core_, x, &cache, slot);
  cache.take_all();
  return gated_scatter(rows, index_of(routed, device()), z, y, static_cast<float>(config_.router_scale))
      .view(h.shape());
}

// The paper's formula counts every token in every step. Executed, under top-k: step r takes k_r of the S tokens, which
// attend to one another alone, and its router sees the k_{r-1} before it. Context 0: the weights of a token that all
// steps take.
Flops Mor::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double router = config_.router_type == "linear" ? 2 * d : 4 * d * d + 4 * d;
  double executed = (config_.n_prelude + config_.n_coda) * block_flops_executed(config_, context);
  double seen = 1;  // share of the tokens that reach the router
  for (int r = 1; r <= depth; ++r) {
    const std::int64_t k = context > 0 ? mor_capacity(context, r, config_.n_recurrences) : 0;
    const double share = context > 0 ? static_cast<double>(k) / static_cast<double>(context) : 1;
    executed += seen * router + share * config_.n_core * block_flops_executed(config_, k);
    seen = share;
  }
  Flops flops = RecurrentModel::flops(context, depth);
  flops.executed_body = executed;
  return flops;
}

}  // namespace grt
