#include "models/poisson.h"

namespace grt {
namespace {
constexpr std::uint32_t kInitialState = 0;  // the one site of its noise
constexpr float kInitialStd = 0.02f;
}  // namespace

Poisson::Poisson(const PoissonConfig& config) : RecurrentModel(config), config_(config) {
  const Scope root{&params_, ""};
  adapter_.emplace(root / "adapter", config.d_model, config.d_model);
}

// s^0 (B, T, d). In training every row has its own; otherwise all sequences have the same at the same position, so that
// neither the batch nor a cache makes a difference.
Tensor Poisson::initial_state(const Shape& shape, const Pass& pass) const {
  const DType dtype = params_.values().dtype();
  if (config_.initial_state == "zero") return Tensor::zeros(shape, dtype, device());
  if (pass.training) return truncated_normal(shape, kInitialStd, pass.noise(kInitialState), 0, dtype, device());
  const NoiseKey key{pass.key.seed, 0, kInitialState};
  const auto at = [&](Scalar<std::int64_t> first, std::int64_t count) {
    return truncated_normal({count, shape[2]}, kInitialStd, key, first, dtype, device());
  };
  const Tensor all = Tensor::empty(shape, dtype, device());
  std::int64_t row = 0;
  const auto append = [&](const Tensor& part) {
    device().copy(all.rows(row, part.dim(0)).raw(), part.raw(), part.bytes());
    row += part.dim(0);
  };
  if (pass.cache) {
    for (const TokenRun& run : pass.cache->runs()) append(at(run.first(), run.count));
  } else {
    const Tensor one = at(0, shape[1]);
    for (std::int64_t b = 0; b < shape[0]; ++b) append(one);
  }
  return all;
}

// s <- core(adapter([s ; e])); the half of e is in `anchor`, or none where the state stands in its place.
Var Poisson::recur(const Var& s, const Var& anchor, int r, const Pass& pass) const {
  return core((*adapter_)(s, anchor ? anchor : adapter_->fix(s)), r, pass);
}

RecurrentModel::Unrolled Poisson::unroll(const Tensor& tokens, const Pass& pass) const {
  const Var embedding = embed(tokens, pass), e = prelude(embedding, pass);
  pass.show("anchor", 0, e);
  const auto anchor = std::make_shared<Var>(fix_injection(*adapter_, embedding, e, pass));
  Unrolled u{initial_state(e.shape(), pass),
             [this, anchor, pass](const Var& s, int r) { return recur(s, *anchor, r, pass); }};
  u.keep = [anchor](const Tensor& rows) { keep_rows(*anchor, rows); };
  return u;
}

Var Poisson::finish(const Var& s, int depth, const Pass& pass) const {
  return RecurrentModel::finish(backbone_->ln_f(s), depth, pass);
}

// The adapter is no part of the paper's formula. Executed: its product with e once, that with the state in each step.
Flops Poisson::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  Flops flops = RecurrentModel::flops(context, depth);
  flops.executed_body += (depth + 1) * 2 * d * d;
  return flops;
}

}  // namespace grt
