// The matrix product of the kernel contract: tensors and column ranges become strided matrices for cuda/blas.h.
#include "cuda/cuda.h"

namespace grt::cuda {
namespace {

Matrix matrix_of(const Factor& factor) {
  const Shape& shape = factor.tensor.shape();
  const auto [begin, count] = factor.columns;
  const std::int64_t columns = count < 0 ? shape.last() - begin : count;
  const float* const data = f32(factor.tensor) + begin;
  if (factor.transposed) return {data, columns, shape.rows(), shape.last(), true};
  return {data, shape.rows(), columns, shape.last(), false};
}

}  // namespace

void CudaKernels::matmul(const Into& y, Columns columns, const Factor& a, const Factor& b, const Tensor& bias) {
  if (!y) return;
  blas.multiply(f32(y.to) + columns.begin, y.to.shape().last(), y.add, matrix_of(a), matrix_of(b), f32(bias),
                y.to.device(), stream);
}

}  // namespace grt::cuda
