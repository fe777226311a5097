// Routing: which positions of a sequence a step works on, and the way of their rows there and back.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {
namespace {

void check_index(const char* op, const Shape& x, const Tensor& index) {
  check(x.rank() == 3 && index.shape().rank() == 2 && index.dtype() == DType::i32 && index.dim(0) == x[0] &&
            index.dim(1) <= x[1],
        "{}: of rows {} a sequence, (B, T, C), the index must name at most T, (B, k) i32, not {} {}", op, x,
        index.shape(), name_of(index.dtype()));
}

}  // namespace

TopK top_k(const Tensor& scores, std::int64_t k) {
  check(scores.shape().rank() == 2 && 0 < k && k <= scores.dim(1), "top_k: {} of scores {}, which must be (B, T)", k,
        scores.shape());
  const TopK top{Tensor::empty({scores.dim(0), k}, DType::i32, scores.device()), Tensor::like(scores)};
  scores.device().kernels().top_k(top.index, top.chosen, scores);
  observed("top_k", top.chosen);
  return top;
}

Tensor gather_rows(const Tensor& x, const Tensor& index) {
  check_index("gather_rows", x.shape(), index);
  const Tensor y = Tensor::empty({x.dim(0), index.dim(1), x.dim(2)}, x.dtype(), x.device());
  x.device().kernels().gather_rows(y, x, index);
  return y;
}

// dx[index] = dy, the other rows of dx are 0.
Var gather_rows(const Var& x, const Tensor& index) {
  const Tensor y = gather_rows(x.value(), index);
  Kernels& k = x.kernels();
  return record("gather_rows", y, {x},
                [&k, dx = x.sink(), index](const Tensor& dy) { k.gather_rows_backward(dx.accumulate(), dy, index); });
}

// With g = scale sigmoid(z):  dh = dy;  do = g dy[index];  dz = g (1 - sigmoid(z)) <dy[index], o>.
Var gated_scatter(const Var& h, const Tensor& index, const Var& z, const Var& o, float scale) {
  check_index("gated_scatter", h.shape(), index);
  check(o.shape() == Shape{index.dim(0), index.dim(1), h.shape().last()} && z.shape() == o.shape().with_last(1),
        "gated_scatter: h is {} and the index {}, so o must be ({}, {}, {}) and z that with 1 column, not {} and {}",
        h.shape(), index.shape(), index.dim(0), index.dim(1), h.shape().last(), o.shape(), z.shape());
  check_alike("gated_scatter", h.value(), z.value(), o.value());
  const Tensor y = Tensor::like(h.value());
  Kernels& k = h.kernels();
  k.gated_scatter(y, h.value(), index, z.value(), o.value(), scale);
  return record(
      "gated_scatter", y, {h, z, o},
      [&k, dh = h.sink(), dz = z.sink(), d_o = o.sink(), index, z = z.value(), o = o.value(), scale](const Tensor& dy) {
        k.gated_scatter_backward(dz.into(), d_o.into(), dy, index, z, o, scale);
        pass(k, dh, dy);
      });
}

}  // namespace grt
