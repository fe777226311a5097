// Values are read and changed in place: all tensors lie in the memory of the host.
#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace grt {
namespace {

double dot(const Tensor& a, const Tensor& b) {
  double s = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) s += a.data<double>()[i] * b.data<double>()[i];
  return s;
}

void fill_normal(const Tensor& t, NoiseKey key) {
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<double>()[i] = random_normal(key, i);
}

// d/ds of loss(x + s v) at s = 0, from four values; x is restored. Error h^4 / 30 of the fifth derivative.
double directional_difference(const Tensor& x, const Tensor& v, const std::function<double()>& loss) {
  const double h = 1e-3;
  const Tensor x0 = x.clone();
  const auto at = [&](double step) {
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<double>()[i] = x0.data<double>()[i] + step * v.data<double>()[i];
    return loss();
  };
  const double d = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  x.device().copy(x.raw(), x0.raw(), x.bytes());
  return d;
}

}  // namespace

GradReport gradcheck(const std::function<Var()>& f, const std::vector<Checked>& variables, std::uint64_t seed) {
  for (const auto& [name, var] : variables) {
    check(var.value().dtype() == DType::f64, "gradcheck: {} must be f64, not {}", name, name_of(var.value().dtype()));
    var.clear_grad();
  }
  Tape tape;
  Var out;
  {
    Record on(&tape);
    out = f();
  }
  const Tensor weights = Tensor::like(out.value());
  fill_normal(weights, {seed, 0, 0});
  tape.backward(out, weights.clone());

  GradReport report;
  std::uint32_t site = 0;
  for (const auto& [name, var] : variables) {
    ++site;
    const Tensor& x = var.value();
    const Tensor v = Tensor::zeros(x.shape(), DType::f64, x.device());
    const bool small = x.numel() <= 64;
    for (std::int64_t trial = 0; trial < (small ? x.numel() : 4); ++trial) {
      if (small) {
        x.device().zero(v.raw(), v.bytes());
        v.data<double>()[trial] = 1;
      } else {  // of length 1, so that the differences stay in the neighbourhood
        fill_normal(v, {seed, site, static_cast<std::uint32_t>(trial)});
        const double length = std::sqrt(dot(v, v));
        for (std::int64_t i = 0; i < v.numel(); ++i) v.data<double>()[i] /= length;
      }
      const double numeric = directional_difference(x, v, [&] { return dot(f().value(), weights); });
      const double analytic = var.has_grad() ? dot(var.grad(), v) : 0;
      const double error = std::abs(numeric - analytic) / std::max({std::abs(numeric), std::abs(analytic), 1e-5});
      if (!std::isnan(report.worst) && !(error <= report.worst))  // the first NaN is the worst of all
        report = {error, fmt::format("{}, {} {}", name, small ? "element" : "direction", trial)};
    }
  }
  return report;
}

}  // namespace grt
