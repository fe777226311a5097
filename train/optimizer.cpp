#include "train/optimizer.h"

#include <cmath>

#include "ops/kernels.h"
#include "train/schedule.h"

namespace grt {
namespace {

std::string describe_bad(const std::string& name, const Tensor& t) {
  const std::int64_t bad = t.device().kernels().count_not_finite(t);
  return bad == 0 ? "" : fmt::format("{} {} ({} of {} values are NaN or infinite)", name, t.shape(), bad, t.numel());
}

}  // namespace

Optimizer::Optimizer(Params& params, const OptimizerConfig& config)
    : params_(params),
      config_(config),
      moments_{Tensor::zeros({params.extent()}, params.values().dtype(), params.values().device()),
               Tensor::zeros({params.extent()}, params.values().dtype(), params.values().device())} {}

double Optimizer::gradient_norm() const {
  const Tensor& g = params_.gradients();
  return std::sqrt(g.device().kernels().sum_squares(g));
}

void Optimizer::update(std::int64_t step, double lr, double norm) {
  AdamW adamw{.lr = lr,
              .beta1 = config_.beta1,
              .beta2 = config_.beta2,
              .eps = config_.eps,
              .weight_decay = 0,
              .grad_scale = clip_coefficient(norm, config_.grad_clip),
              .m_correction = 1 / (1 - std::pow(config_.beta1, step + 1)),
              .v_correction = 1 / (1 - std::pow(config_.beta2, step + 1))};
  for (const auto& [begin, n, decayed] : params_.trained()) {
    adamw.weight_decay = decayed ? config_.weight_decay : 0;
    params_.values().device().kernels().adamw(params_.values().range(begin, {n}), moments_.m.range(begin, {n}),
                                              moments_.v.range(begin, {n}), params_.gradients().range(begin, {n}),
                                              adamw);
  }
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
  for (const Param& p : params.all())
    if (std::string bad = describe_bad(p.name, p.var.value()); !bad.empty()) return bad;
  return {};
}

std::string blame_weights(const Params& params) {
  const std::string weight = first_bad_weight(params);
  return weight.empty() ? "all weights are finite" : "the first bad weight: " + weight;
}

}  // namespace grt
