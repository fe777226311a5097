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

Mor::Mor(const MorConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
  for (int r = 0; r < config.n_recurrences; ++r) routers_.emplace_back(root / "router" / r, config);
}

void Mor::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  if (pass.causal_routing)
    causal_exits(tokens, depths, pass, visit);
  else
    top_k_exits(tokens, depths, pass, nullptr, visit);
}

Var Mor::loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const {
  check(!pass.causal_routing, "mor: the loss is that of top-k routing");
  Var aux, z;
  top_k_exits(tokens, std::span(&depth, 1), pass, &aux, [&](int, const Var& exit) { z = exit; });
  return head_loss(z, targets, pass) + scale(aux, static_cast<float>(config_.router_aux_weight));
}

Var Mor::finish(const Var& h, int depth, const Pass& pass) const {
  return backbone_->ln_f(through(coda_, h, pass.cache, config_.n_prelude + depth * config_.n_core, pass.recompute));
}

// --- top-k -----------------------------------------------------------------------------------------------------------

void Mor::top_k_exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, Var* aux,
                      const Visit& visit) const {
  check(!pass.cache, "mor: top-k routing looks at the whole sequence; with a cache routing must be causal");
  Var h = through(prelude_, backbone_->embed(tokens, nullptr), nullptr, 0, pass.recompute);
  Tensor routed = every_position(tokens.dim(0), tokens.dim(1), device());
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r) h = top_k_step(h, r, routed, pass, aux);
    visit(depth, finish(h, depth, pass));
  }
}

// h[I] <- h[I] + g core(h[I]) for the I of step r + 1. `routed` (B, m), the positions that the step before took,
// becomes I. Every sequence takes equally many, so they stay one batch. The router's loss is added to *aux.
Var Mor::top_k_step(const Var& h, int r, Tensor& routed, const Pass& pass, Var* aux) const {
  const auto run = [&](std::function<Var()> f) { return pass.recompute ? checkpoint(std::move(f)) : f(); };
  const std::int64_t batch = routed.dim(0), before = routed.dim(1);
  const Var x = gather_rows(h, routed);
  const Var z = run([this, x, r] { return routers_[r](x); });

  // g grows with z, which tells more values apart.
  const TopK top = top_k(z.value().view({batch, before}), mor_capacity(h.shape()[1], r + 1, config_.n_recurrences));
  routed = gather_rows(routed.view({batch, before, 1}), top.index).view(top.index.shape());
  if (aux) {
    const Var loss = bce_with_logits(z, top.chosen.view(z.shape()));
    *aux = *aux ? *aux + loss : loss;
  }

  const Var mine = gather_rows(x, top.index);
  const Var y = run([this, mine] { return through(core_, mine); });
  return gated_scatter(h, routed, gather_rows(z, top.index), y, static_cast<float>(config_.router_scale));
}

// --- causal ----------------------------------------------------------------------------------------------------------

void Mor::causal_exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  check(!Tape::recording(), "mor: causal routing serves inference; it cannot be recorded on a tape");
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1), width = config_.d_model;
  const Tensor h = through(prelude_, backbone_->embed(tokens, pass.cache), pass.cache).value();
  Positions all(time);
  std::iota(all.begin(), all.end(), 0);
  std::vector<Positions> routed(batch, all);
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r)
      for (std::int64_t b = 0; b < batch; ++b)
        causal_step(h.range(b * time * width, {1, time, width}), r, routed[b], b, pass);
    visit(depth, finish(h, depth, pass));
  }
}

// The same for one sequence, h (1, T, d) in place: the first step takes all tokens, a later one those of `routed` whose
// own logit is above 0. Nothing depends on tokens to come, and each sequence takes as many as it takes.
void Mor::causal_step(const Tensor& h, int r, Positions& routed, std::int64_t sequence, const Pass& pass) const {
  if (routed.empty()) return;
  Var x = gather_rows(h, index_of(routed, device())), z = routers_[r](x);
  if (r > 0) {
    const Positions chosen = positive(z.value());
    Positions kept;
    for (const std::int32_t i : chosen) kept.push_back(routed[i]);
    routed = kept;
    if (routed.empty()) return;
    const Tensor index = index_of(chosen, device());
    x = gather_rows(x, index);
    z = gather_rows(z, index);
  }

  Var y;
  if (pass.cache) {
    const int slot = config_.n_prelude + r * config_.n_core;
    const KvCache own = pass.cache->of_sequence(slot, config_.n_core, sequence);
    y = through(core_, x, &own);
    pass.cache->taken(slot, sequence) += static_cast<std::int64_t>(routed.size());
  } else {
    y = through(core_, x);
  }
  const Var next = gated_scatter(h, index_of(routed, device()), z, y, static_cast<float>(config_.router_scale));
  device().copy(h.raw(), next.value().raw(), h.bytes());
}

// The paper's formula counts every token in every step. Executed, under top-k: step r takes k_r of the S tokens, which
// attend to one another alone, and its router sees the k_{r-1} before it. Context 0: the weights of a token that all
// steps take.
Flops Mor::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double router = config_.router_type == "linear" ? 2 * d : 4 * d * d + 4 * d;
  const double applied = static_cast<double>(applications(depth).size());
  double executed = (config_.n_prelude + config_.n_coda) * block_flops_executed(config_, context);
  double seen = 1;  // share of the tokens that reach the router
  for (int r = 1; r <= depth; ++r) {
    const std::int64_t k = context > 0 ? mor_capacity(context, r, config_.n_recurrences) : 0;
    const double share = context > 0 ? static_cast<double>(k) / static_cast<double>(context) : 1;
    executed += seen * router + share * config_.n_core * block_flops_executed(config_, k);
    seen = share;
  }
  return {applied * block_flops_paper(config_, context), 2 * d * config_.vocab_size, executed,
          2 * d * config_.padded_vocab_size};
}

}  // namespace grt
