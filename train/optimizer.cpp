#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/kernels.h"
#include "train/host.h"

namespace grt {
namespace {

Moments zero_moments(const Params& params, std::int64_t count) {
  const auto zeros = [&] { return Tensor::zeros({count}, params.values().dtype(), params.values().device()); };
  return {zeros(), zeros()};
}

}  // namespace

Optimizer::Optimizer(Params& params, const OptimizerConfig& config, Comm& comm, bool sharded)
    : params_(params),
      config_(config),
      comm_(comm),
      sharded_(sharded && comm.size() > 1),
      own_(sharded_ ? comm.share(params.extent()) : Comm::Share{0, params.extent()}),
      moments_(zero_moments(params, own_.count)),
      lr_(params.values().device()),
      m_correction_(params.values().device()),
      v_correction_(params.values().device()),
      squares_(Tensor::empty({1}, DType::f64, params.values().device())),
      grad_scale_(Tensor::like(squares_)),
      graphs_(params.values().device()) {}

void Optimizer::reduce_gradients() {
  comm_.reduce_scatter(params_.gradients());
  if (!sharded_) gather_gradients();
}

void Optimizer::gather_gradients() { comm_.all_gather(params_.gradients()); }

// Each rank knows the squares of its share; the parts are added in the order of the ranks.
double Optimizer::update(std::int64_t step, double lr) {
  lr_.set(lr);
  m_correction_.set(1 / (1 - std::pow(config_.beta1, step + 1)));
  v_correction_.set(1 / (1 - std::pow(config_.beta2, step + 1)));
  const auto [begin, count] = comm_.share(params_.extent());
  const Tensor share = params_.gradients().range(begin, {count});
  Kernels& kernels = share.device().kernels();
  double squares = 0;
  if (comm_.size() > 1) {
    for (const double part : comm_.gather(grt::sum_squares(share))) squares += part;
    squares_.device().copy(squares_.raw(), &squares, sizeof squares);
  }
  graphs_.run(0, [&] {
    if (comm_.size() == 1) kernels.sum_squares(squares_, share);
    kernels.clip_scale(grad_scale_, squares_, config_.grad_clip);
    update_own();
  });
  if (sharded_) comm_.all_gather(params_.values());
  return std::sqrt(on_host<double>(squares_)[0]);
}

void Optimizer::update_own() {
  AdamW adamw{.lr = lr_,
              .beta1 = config_.beta1,
              .beta2 = config_.beta2,
              .eps = config_.eps,
              .weight_decay = 0,
              .grad_scale = {grad_scale_.data<double>(), 1},
              .m_correction = m_correction_,
              .v_correction = v_correction_};
  for (const auto& run : params_.trained()) {
    const std::int64_t begin = std::max(run.begin, own_.begin);
    const std::int64_t n = std::min(run.begin + run.count, own_.begin + own_.count) - begin;
    if (n <= 0) continue;
    adamw.weight_decay = run.decayed ? config_.weight_decay : 0;
    params_.values().device().kernels().adamw(
        params_.values().range(begin, {n}), moments_.m.range(begin - own_.begin, {n}),
        moments_.v.range(begin - own_.begin, {n}), params_.gradients().range(begin, {n}), adamw);
  }
}

Moments Optimizer::whole_moments() const {
  if (!sharded_) return comm_.rank() == 0 ? moments_ : Moments{};
  const Moments whole = comm_.rank() == 0 ? zero_moments(params_, params_.extent()) : Moments{};
  comm_.collect(moments_.m, whole.m);
  comm_.collect(moments_.v, whole.v);
  return whole;
}

void Optimizer::load(const fs::path& checkpoint) {
  if (!sharded_) return load_moments(params_, moments_, checkpoint);
  const Moments whole = zero_moments(params_, params_.extent());
  load_moments(params_, whole, checkpoint);
  for (const auto& [to, from] : {std::pair(moments_.m, whole.m), std::pair(moments_.v, whole.v)})
    to.device().copy(to.raw(), from.range(own_.begin, {own_.count}).raw(), to.bytes());
}

std::string first_bad_gradient(const Params& params) {
  std::vector<const Param*> order;
  for (const Param& p : params.all())
    if (p.name.starts_with("ln_f.")) order.push_back(&p);
  for (auto p = params.all().rbegin(); p != params.all().rend(); ++p)
    if (!p->name.starts_with("ln_f.")) order.push_back(&*p);
  for (const Param* p : order) {
    if (!p->var.has_grad()) continue;
    if (std::string bad = describe_bad("gradient of " + p->name, p->var.grad()); !bad.empty()) return bad;
  }
  return {};
}

std::string first_bad_weight(const Params& params) {
  for (const Param& p : params.all()) {
    if (p.packed) continue;  // what is not finite cannot be packed
    if (std::string bad = describe_bad(p.name, p.var.value()); !bad.empty()) return bad;
  }
  return {};
}

std::string blame_weights(const Params& params) {
  const std::string weight = first_bad_weight(params);
  return weight.empty() ? "all weights are finite" : "the first bad weight: " + weight;
}

}  // namespace grt
