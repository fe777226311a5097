// Normalization.
#include "ops/ops.h"

namespace grt {

// With n = (x - mean) rstd and dn = dy * w, row by row:
//   dx = rstd (dn - mean(dn) - n mean(dn * n)),   dw = sum dy * n,   db = sum dy.
Var layernorm(const Var& x, const Var& w, const Var& b, float eps) {
  const Shape channels{x.shape().last()};
  check(w.shape() == channels, "layernorm: x is {}, so w must be {}, not {}", x.shape(), channels, w.shape());
  check(!b || b.shape() == channels, "layernorm: x is {}, so b must be {}, not {}", x.shape(), channels, b.shape());

  const Tensor y = Tensor::like(x.value());
  const Tensor mean = Tensor::empty({x.shape().rows()}, x.value().dtype(), x.device());
  const Tensor rstd = Tensor::like(mean);
  Kernels& k = x.kernels();
  k.layernorm(y, mean, rstd, x.value(), w.value(), b.value(), eps);

  return record("layernorm", y, {x, w, b},
                [&k, dx = x.sink(), dw = w.sink(), db = b.sink(), x = x.value(), w = w.value(), mean, rstd](
                    const Tensor& dy) { k.layernorm_backward(dx.into(), dw.into(), db.into(), dy, x, w, mean, rstd); });
}

}  // namespace grt
