// The matrix product of the kernel contract: tensors and column ranges become strided views for ops/cpu/gemm.h.
#include "ops/cpu/cpu.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/packed.h"

namespace grt::cpu {
namespace {

// op(factor) with its extents.
template <class T>
struct Matrix {
  std::int64_t rows, columns;
  Strided<T> view;
};

template <class T>
Matrix<T> matrix_of(const Factor& factor) {
  const Shape& shape = factor.tensor.shape();
  const auto [begin, count] = factor.columns;
  const std::int64_t columns = count < 0 ? shape.last() - begin : count;
  const T* data = factor.tensor.data<T>() + begin;
  if (factor.transposed) return {columns, shape.rows(), {data, 1, shape.last()}};
  return {shape.rows(), columns, {data, shape.last(), 1}};
}

}  // namespace

void CpuKernels::matmul(const Into& y, Columns columns, const Factor& a, const Factor& b, const Tensor& bias) {
  if (!y) return;
  if (is_packed(b.tensor.dtype())) return packed_matmul(y, columns, a.tensor, b, bias);
  visit_format(y.to.dtype(), products_, [&]<class F>() {
    using T = Real<F>;
    const Matrix<T> left = matrix_of<T>(a), right = matrix_of<T>(b);
    gemm<F>(left.rows, right.columns, left.columns, left.view, right.view, y.to.data<T>() + columns.begin,
            y.to.shape().last(), y.add, bias ? bias.data<T>() : nullptr,
            kept_.find(right.view.data, right.view.row, right.view.col, right.rows, right.columns));
  });
}

}  // namespace grt::cpu
