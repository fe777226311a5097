// The matrix product of the kernel contract: tensors and column ranges become strided matrices for cuda/blas.h, of f32
// or rounded to bf16.
#include "cuda/cuda.h"

namespace grt::cuda {
namespace {

// Some columns of a tensor, as they lie in memory.
Matrix stored(const Tensor& t, Columns columns) {
  const std::int64_t count = columns.count < 0 ? t.shape().last() - columns.begin : columns.count;
  return {f32(t) + columns.begin, DType::f32, t.shape().rows(), count, t.shape().last(), false};
}

}  // namespace

CudaKernels::Operand CudaKernels::operand(const Factor& factor) {
  Operand o{stored(factor.tensor, factor.columns), {}};
  Device& device = factor.tensor.device();
  if (products == DType::bf16) {
    std::int64_t begin = 0;
    if (Tensor* const held = copies.find(factor.tensor)) {
      if (!*held) round(*held, stored(factor.tensor, {}), device);
      o.copy = *held;
      begin = factor.columns.begin;
    } else {
      round(o.copy, o.matrix, device);
    }
    o.matrix.data = o.copy.data<std::uint16_t>() + begin;
    o.matrix.type = DType::bf16;
    o.matrix.stride = o.copy.shape().last();
  }
  if (factor.transposed) o.matrix = transpose(o.matrix);
  return o;
}

void CudaKernels::gemm(const Into& y, Columns columns, const Matrix& a, const Matrix& b, const Tensor& bias) {
  float* const to = f32(y.to) + columns.begin;
  blas.multiply(to, y.to.shape().last(), y.add ? to : nullptr, a, b, f32(bias), y.to.device(), stream);
}

void CudaKernels::matmul(const Into& y, Columns columns, const Factor& a, const Factor& b, const Tensor& bias) {
  if (!y) return;
  if (is_packed(b.tensor.dtype())) return packed_matmul(y, columns, a.tensor, b, bias);
  const Operand left = operand(a), right = operand(b);
  gemm(y, columns, left.matrix, right.matrix, bias);
}

void CudaKernels::matmul_plus(const Tensor& y, const Tensor& plus, const Factor& a, const Factor& b) {
  if (is_packed(b.tensor.dtype())) return Kernels::matmul_plus(y, plus, a, b);
  const Operand left = operand(a), right = operand(b);
  blas.multiply(f32(y), y.shape().last(), f32(plus), left.matrix, right.matrix, nullptr, y.device(), stream);
}

void CudaKernels::linear_backward(const Into& dx, const Into& dw, const Tensor& dy, const Tensor& x, const Factor& w) {
  if (!dx && !dw) return;
  const Operand left = operand({dy});
  if (dx) {
    const Operand right = operand(w);
    gemm(dx, {}, left.matrix, right.matrix, {});
  }
  if (dw) {
    const Operand right = operand({x});
    gemm(dw, w.columns, transpose(left.matrix), right.matrix, {});
  }
}

}  // namespace grt::cuda
