#include "models/recurrent.h"

#include <algorithm>
#include <numeric>

namespace grt {

RecurrentModel::RecurrentModel(const RecurrentConfig& config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
}

Var RecurrentModel::prelude(const Var& embedding, const Pass& pass) const {
  return through(prelude_, embedding, pass.cache, 0, pass.recompute);
}

Var RecurrentModel::core(const Var& x, int r, const Pass& pass) const {
  pass.show("input", r + 1, x);
  const Var o = through(core_, x, pass.cache, core_slot(r));
  pass.show("proposal", r + 1, o);
  return o;
}

Var RecurrentModel::finish(const Var& h, int depth, const Pass& pass) const {
  check(!pass.cache || depth <= pass.cache->layout().steps, "key/value cache: depth {}, but it is one of {} steps",
        depth, pass.cache ? pass.cache->layout().steps : 0);
  return backbone_->ln_f(
      through(coda_, h, pass.cache, pass.cache ? pass.cache->layout().first_after() : 0, pass.recompute));
}

void RecurrentModel::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass,
                           const Visit& visit) const {
  if (!pass.halting) {
    Pass all = pass;
    if (!pass.recompute && !depths.empty()) all.steps = depths.back();  // steps that are repeated stand alone
    return visit_exits(unroll(tokens, all), depths, all, visit);
  }
  check(pass.cache && depths.size() == 1 && tokens.dim(0) == 1,
        "halting: needs a cache, one depth and tokens (1, N), not {} depths and {}", depths.size(), tokens.shape());
  check_depth(depths[0]);
  check(depths[0] >= 1, "halting: before the first step nothing can stop");
  halt_on_the_way(unroll(tokens, pass), depths[0], pass, visit);
}

void RecurrentModel::keep_rows(Var& x, const Tensor& rows) {
  if (x) x = gather_rows(x, rows);
}

void RecurrentModel::visit_exits(Unrolled u, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  pass.show("state", 0, u.h);
  int r = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; r < depth; ++r) {
      const Record record(recorded(r, depth) ? Tape::recording() : nullptr);
      const auto step = [f = u.step, h = u.h, r] { return f(h, r); };
      u.h = pass.recompute && u.repeatable ? checkpoint(step) : u.step(u.h, r);
      pass.show("state", r + 1, u.h);
    }
    visit(depth, finish(u.h, depth, pass));
  }
  if (!pass.cache) return;
  pass.cache->halt({}, r);
  pass.cache->leave();
}

namespace {

// What the rows of a pass end with, each after its own number of steps.
struct Arrivals {
  std::vector<std::int32_t> under_way;  // rows of the pass
  Tensor results;                       // (1, N, d)
  std::vector<int>* depths;

  Arrivals(const Tensor& h, std::vector<int>* d) : under_way(h.shape().rows()), results(Tensor::like(h)), depths(d) {
    std::iota(under_way.begin(), under_way.end(), 0);
    if (depths) depths->assign(under_way.size(), 0);
  }

  // `going` ascends and counts among those under way, whose values are x.
  void stop_all_but(std::span<const std::int32_t> going, int depth, const Tensor& x) {
    std::vector<std::int32_t> rest;
    for (std::size_t i = 0; i < under_way.size(); ++i) {
      if (rest.size() < going.size() && going[rest.size()] == static_cast<std::int32_t>(i)) {
        rest.push_back(under_way[i]);
        continue;
      }
      const Tensor to = results.rows(under_way[i], 1);
      to.device().copy(to.raw(), x.rows(static_cast<std::int64_t>(i), 1).raw(), to.bytes());
      if (depths) (*depths)[under_way[i]] = depth;
    }
    under_way = std::move(rest);
  }
};

Tensor index_of(std::span<const std::int32_t> rows, Device& device) {
  const Tensor t = Tensor::from<std::int32_t>({1, static_cast<std::int64_t>(rows.size())}, rows, device);
  device.sync();  // before the rows die
  return t;
}

}  // namespace

// A halting that sees exits needs the coda of all tokens under way at each. Else they pass through it once all have
// stopped, so that each sees the others' final states there.
void RecurrentModel::halt_on_the_way(Unrolled u, int deepest, const Pass& pass, const Visit& visit) const {
  check(static_cast<bool>(u.keep), "halting: this {} model's tokens cannot stop before others", config().architecture);
  const Halting& halting = *pass.halting;
  pass.show("state", 0, u.h);
  Arrivals arrivals(u.h.value(), halting.depths);
  for (int depth = 1; !arrivals.under_way.empty(); ++depth) {
    u.h = u.step(u.h, depth - 1);
    pass.show("state", depth, u.h);
    const Var seen = halting.sees_exits ? finish(u.h, depth, pass) : u.h;
    const std::vector<std::int32_t> going =
        depth < deepest ? halting.going(depth, seen.value()) : std::vector<std::int32_t>();
    if (going.size() == arrivals.under_way.size()) continue;
    arrivals.stop_all_but(going, depth, seen.value());
    pass.cache->halt(going, depth);
    if (going.empty()) break;
    const Tensor rows = index_of(going, device());
    keep_rows(u.h, rows);
    u.keep(rows);
  }
  Var z = arrivals.results;
  if (!halting.sees_exits) {
    pass.cache->take_up_all();
    z = finish(z, deepest, pass);
  }
  pass.cache->leave();
  visit(deepest, z);
}

Var RecurrentModel::fix_injection(const PairLinear& inject, const Var& embedding, const Var& anchor,
                                  const Pass& pass) const {
  switch (pass.reinjection) {
    case Reinjection::state:
      return {};
    case Reinjection::embedding:
      return inject.fix(embedding);
    case Reinjection::zero:
      return inject.fix(Tensor::zeros(anchor.shape(), anchor.value().dtype(), device()));
    case Reinjection::prelude:
      break;
  }
  return inject.fix(anchor);
}

std::vector<std::string> RecurrentModel::applications(int depth) const {
  std::vector<std::string> names;
  const auto add = [&](const char* prefix, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) names.push_back(fmt::format("{}.{}", prefix, i));
  };
  add("prelude", prelude_.size());
  for (int r = 0; r < depth; ++r) add("core", core_.size());
  add("coda", coda_.size());
  return names;
}

KvLayout RecurrentModel::kv_layout(int depth) const {
  const auto size = [](const std::vector<Block>& list) { return static_cast<int>(list.size()); };
  return {size(prelude_), size(core_), depth, size(coda_)};
}

Flops RecurrentModel::flops(std::int64_t context, int depth) const {
  const BackboneConfig& c = config();
  const double d = static_cast<double>(c.d_model), blocks = static_cast<double>(applications(depth).size());
  return {blocks * block_flops_paper(c, context), 2 * d * c.vocab_size, blocks * block_flops_executed(c, context),
          2 * d * c.padded_vocab_size};
}

}  // namespace grt
