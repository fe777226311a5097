#include "models/recurrent.h"

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
  return backbone_->ln_f(through(coda_, h, pass.cache, core_slot(depth), pass.recompute));
}

void RecurrentModel::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass,
                           const Visit& visit) const {
  visit_exits(unroll(tokens, pass), depths, pass, visit);
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
