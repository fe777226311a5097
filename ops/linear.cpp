// Products with weights.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {

// dx = dy w,  dw = dy^T x,  db = sum of the rows of dy.
Var linear(const Var& x, const Var& w, const Var& b) {
  const std::int64_t in = x.shape().last(), out = w.shape()[0];
  check(w.shape() == Shape{out, in}, "linear: x is {}, so w must be (out, {}), not {}", x.shape(), in, w.shape());
  check(!b || b.shape() == Shape{out}, "linear: w is {}, so b must be ({}), not {}", w.shape(), out, b.shape());
  check_alike("linear", x.value(), b.value());
  check_weight("linear", x, w, {x, w, b});

  const Tensor y = Tensor::empty(x.shape().with_last(out), x.value().dtype(), x.device());
  Kernels& k = x.kernels();
  k.matmul({y}, {}, {x.value()}, {w.value(), true}, b.value());

  return record("linear", y, {x, w, b},
                [&k, dx = x.sink(), dw = w.sink(), db = b.sink(), x = x.value(), w = w.value()](const Tensor& dy) {
                  k.linear_backward(dx.into(), dw.into(), dy, x, {w});
                  k.sum_rows(db.into(), dy);
                });
}

// The derivative of linear() on a block of columns of w; dw is written in parts, so it accumulates.
Var linear_columns(const Var& x, const Var& w, std::int64_t begin, const Var& plus) {
  const Columns columns{begin, x.shape().last()};
  const Shape shape = x.shape().with_last(w.shape()[0]);
  check(w.shape().rank() == 2 && begin >= 0 && begin + columns.count <= w.shape()[1],
        "linear_columns: columns {}..{} lie outside w {}", begin, begin + columns.count, w.shape());
  check(!plus || plus.shape() == shape, "linear_columns: x is {} and w {}, so plus must be {}, not {}", x.shape(),
        w.shape(), shape, plus.shape());
  check_alike("linear_columns", x.value(), plus.value());
  check_weight("linear_columns", x, w, {x, w, plus});

  const Tensor y = Tensor::empty(shape, x.value().dtype(), x.device());
  Kernels& k = x.kernels();
  if (plus)
    k.matmul_plus(y, plus.value(), {x.value()}, {w.value(), true, columns});
  else
    k.matmul({y}, {}, {x.value()}, {w.value(), true, columns}, {});

  return record(
      "linear_columns", y, {x, w, plus},
      [&k, dx = x.sink(), dw = w.sink(), dplus = plus.sink(), x = x.value(), w = w.value(), columns](const Tensor& dy) {
        k.linear_backward(dx.into(), dw.accumulate(), dy, x, {w, false, columns});
        pass(k, dplus, dy);
      });
}

}  // namespace grt
