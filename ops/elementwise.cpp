// Operations that act on each element by itself, and concatenation.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {

Var operator+(const Var& a, const Var& b) {
  check(a.shape() == b.shape(), "add: {} and {} differ (there is no broadcasting)", a.shape(), b.shape());
  check_alike("add", a.value(), b.value());
  const Tensor y = Tensor::like(a.value());
  Kernels& k = a.kernels();
  k.add({y}, a.value(), b.value());
  return record_sum(y, a, b);
}

Var record_sum(const Tensor& y, const Var& a, const Var& b) {
  return record("add", y, {a, b}, [&k = a.kernels(), da = a.sink(), db = b.sink()](const Tensor& dy) {
    pass(k, da, dy), pass(k, db, dy);
  });
}

Var scale(const Var& x, float s) {
  const Tensor y = Tensor::like(x.value());
  Kernels& k = x.kernels();
  k.multiply({y}, x.value(), s);
  return record("scale", y, {x}, [&k, dx = x.sink(), s](const Tensor& dy) { k.multiply(dx.into(), dy, s); });
}

// With p = sigmoid(x):  dx = dy p (1 + x (1 - p)).
Var silu(const Var& x) {
  const Tensor y = Tensor::like(x.value());
  Kernels& k = x.kernels();
  k.silu(y, x.value());
  return record("silu", y, {x},
                [&k, dx = x.sink(), x = x.value()](const Tensor& dy) { k.silu_backward(dx.into(), dy, x); });
}

// erf:   dx = dy (Phi(x) + x phi(x)), Phi and phi the normal distribution and its density.
// tanh:  with u = sqrt(2/pi) (x + 0.044715 x^3), t = tanh u:  dx = dy ((1 + t)/2 + x (1 - t^2)/2 du/dx).
Var gelu(const Var& x, Gelu kind) {
  const Tensor y = Tensor::like(x.value());
  Kernels& k = x.kernels();
  k.gelu(y, x.value(), kind);
  return record("gelu", y, {x}, [&k, dx = x.sink(), x = x.value(), kind](const Tensor& dy) {
    k.gelu_backward(dx.into(), dy, x, kind);
  });
}

Var add_noise(const Var& x, float sigma, NoiseKey key) {
  if (sigma == 0) return x;
  const Tensor y = Tensor::like(x.value());
  Kernels& k = x.kernels();
  k.add_noise(y, x.value(), sigma, key);
  return record("add_noise", y, {x}, [&k, dx = x.sink()](const Tensor& dy) { pass(k, dx, dy); });
}

Tensor truncated_normal(Shape shape, float std, NoiseKey key, Scalar<std::int64_t> first, DType dtype, Device& device) {
  constexpr std::int64_t kRows = std::int64_t{1} << 32, kColumns = 1 << 24;  // random_truncated_normal's
  check(first.known() >= 0 && first.known() <= kRows - shape.rows() && shape.last() <= kColumns,
        "truncated_normal: rows {}.. of {} are beyond what a key names", first.known(), shape);
  const Tensor y = Tensor::empty(shape, dtype, device);
  device.kernels().truncated_normal(y, std, key, first);
  observed("truncated_normal", y);
  return y;
}

Var lerp(const Var& a, const Var& b, float t) {
  check(a.shape() == b.shape(), "lerp: {} and {} differ", a.shape(), b.shape());
  check_alike("lerp", a.value(), b.value());
  const Tensor y = Tensor::like(a.value());
  Kernels& k = a.kernels();
  k.lerp({y}, a.value(), b.value(), t);
  return record("lerp", y, {a, b}, [&k, da = a.sink(), db = b.sink(), t](const Tensor& dy) {
    k.multiply(da.into(), dy, t);
    k.multiply(db.into(), dy, 1 - t);
  });
}

Var concat(const Var& a, const Var& b) {
  const std::int64_t left = a.shape().last(), right = b.shape().last();
  check(a.shape().with_last(right) == b.shape(), "concat: {} and {} may differ in the last extent only", a.shape(),
        b.shape());
  check_alike("concat", a.value(), b.value());
  const Tensor y = Tensor::empty(a.shape().with_last(left + right), a.value().dtype(), a.device());
  Kernels& k = a.kernels();
  k.put_columns(y, 0, a.value());
  k.put_columns(y, left, b.value());
  return record("concat", y, {a, b}, [&k, da = a.sink(), db = b.sink(), left](const Tensor& dy) {
    k.get_columns(da.into(), dy, 0);
    k.get_columns(db.into(), dy, left);
  });
}

}  // namespace grt
