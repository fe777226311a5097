// Normalization.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {
namespace {

void check_norm(const char* op, const Var& x, const Var& w, const Var& b) {
  const Shape channels{x.shape().last()};
  check(w.shape() == channels, "{}: x is {}, so w must be {}, not {}", op, x.shape(), channels, w.shape());
  check(!b || b.shape() == channels, "{}: x is {}, so b must be {}, not {}", op, x.shape(), channels, b.shape());
  check_alike(op, x.value(), w.value(), b.value());
}

// What a kernel writes.
struct Norm {
  Tensor y, mean, rstd;
  explicit Norm(const Tensor& x)
      : y(Tensor::like(x)), mean(Tensor::empty({x.shape().rows()}, x.dtype(), x.device())), rstd(Tensor::like(mean)) {}
};

// With n = (x - mean) rstd and dn = dy * w, row by row:
//   dx = rstd (dn - mean(dn) - n mean(dn * n)),   dw = sum dy * n,   db = sum dy.
Var record_norm(const Norm& norm, const Var& x, const Var& w, const Var& b) {
  return record("layernorm", norm.y, {x, w, b},
                [&k = x.kernels(), dx = x.sink(), dw = w.sink(), db = b.sink(), x = x.value(), w = w.value(),
                 mean = norm.mean, rstd = norm.rstd](const Tensor& dy) {
                  k.layernorm_backward(dx.into(), dw.into(), db.into(), dy, x, w, mean, rstd);
                });
}

}  // namespace

Var layernorm(const Var& x, const Var& w, const Var& b, float eps) {
  check_norm("layernorm", x, w, b);
  const Norm norm(x.value());
  x.kernels().layernorm(norm.y, norm.mean, norm.rstd, x.value(), w.value(), b.value(), eps);
  return record_norm(norm, x, w, b);
}

// Two steps on the tape: backward, layernorm adds its part where the gradient of the sum already is.
SumAndNorm add_layernorm(const Var& x, const Var& y, const Var& w, const Var& b, float eps) {
  check(x.shape() == y.shape(), "add_layernorm: {} and {} differ", x.shape(), y.shape());
  check_alike("add_layernorm", x.value(), y.value());
  check_norm("add_layernorm", x, w, b);
  const Norm norm(x.value());
  const Tensor sum = Tensor::like(x.value());
  x.kernels().add_layernorm(sum, norm.y, norm.mean, norm.rstd, x.value(), y.value(), w.value(), b.value(), eps);
  const Var s = record_sum(sum, x, y);
  return {s, record_norm(norm, s, w, b)};
}

}  // namespace grt
