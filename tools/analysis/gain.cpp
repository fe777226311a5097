#include "tools/analysis/gain.h"

#include <algorithm>
#include <cmath>

#include "train/host.h"

namespace grt {
namespace {

// The cube root of the rounding of f64: where the errors of a central difference, of rounding and of curvature, meet.
constexpr double kRelativeStep = 6e-6;

double length(const Tensor& x) { return std::sqrt(sum_squares(x)); }

// x + step v, in f64.
Tensor moved(const Tensor& x, const Tensor& v, double step) {
  const Tensor y = Tensor::like(x);
  for (std::int64_t i = 0; i < x.numel(); ++i) y.data<double>()[i] = x.data<double>()[i] + step * v.data<double>()[i];
  return y;
}

Tensor times(const Tensor& x, double factor) {
  const Tensor y = Tensor::like(x);
  for (std::int64_t i = 0; i < x.numel(); ++i) y.data<double>()[i] = factor * x.data<double>()[i];
  return y;
}

Tensor along(const Map& map, const Tensor& at, const Tensor& v, double step) {  // J v
  const Tensor ahead = map(moved(at, v, step)).value(), behind = map(moved(at, v, -step)).value();
  return times(moved(ahead, behind, -1), 0.5 / step);
}

Tensor back(const Map& map, const Tensor& at, const Tensor& u) {  // J^T u
  const Var x = Var::leaf(at);
  Tape tape;
  Var y;
  {
    const Record on(&tape);
    y = map(x);
  }
  if (y.wants_grad()) tape.backward(y, u);
  return x.has_grad() ? x.grad() : Tensor::zeros(at.shape(), at.dtype(), at.device());
}

Tensor random_direction(const Tensor& like, const NoiseKey& key) {
  const Tensor v = Tensor::like(like);
  for (std::int64_t i = 0; i < v.numel(); ++i) v.data<double>()[i] = random_normal(key, i);
  return times(v, 1 / length(v));
}

}  // namespace

Gain largest_gain(const Map& map, const Tensor& at, const GainOptions& options) {
  check(at.dtype() == DType::f64, "gain: the point must be f64, not {}", name_of(at.dtype()));
  const double step = kRelativeStep * std::max(1.0, length(at));
  Tensor v = random_direction(at, options.start);
  Gain gain{0, 0};
  while (gain.iterations < options.most_iterations) {
    ++gain.iterations;
    const Tensor u = along(map, at, v, step);
    const double grown = length(u);
    if (grown == 0) break;
    const Tensor w = back(map, at, times(u, 1 / grown));
    const double before = gain.value;
    gain.value = length(w);  // |J^T u| of a unit u: at least |J v|
    if (gain.value == 0 || gain.value - before < options.tolerance * gain.value) break;
    v = times(w, 1 / gain.value);
  }
  return gain;
}

}  // namespace grt
