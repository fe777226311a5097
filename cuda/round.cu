// Factors of products in bf16: copies, rounded to the nearest value, ties to even.
#include "cuda/mma.cuh"
#include "ops/hold.h"

namespace grt::cuda {
namespace {

constexpr int kEach = 8;  // elements of a thread: 16 bytes of bf16

// to (rows, chunks of kEach) = x, of `columns` columns and rows `stride` elements apart; zeros behind the last column.
// aligned: a chunk of x that is whole can be read as two float4.
__global__ void round_kernel(uint4* to, const float* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                             bool aligned) {
  const std::int64_t chunks = (columns + kEach - 1) / kEach, i = global_index(), row = i / chunks;
  if (row >= rows) return;
  const std::int64_t c = i % chunks * kEach;
  const float* const from = x + row * stride + c;
  float4 a, b;
  if (aligned && c + kEach <= columns) {
    a = reinterpret_cast<const float4*>(from)[0];
    b = reinterpret_cast<const float4*>(from)[1];
  } else {
    const auto at = [&](int j) { return c + j < columns ? from[j] : 0.0f; };
    a = {at(0), at(1), at(2), at(3)};
    b = {at(4), at(5), at(6), at(7)};
  }
  to[i] = {pair_of(a.x, a.y), pair_of(a.z, a.w), pair_of(b.x, b.y), pair_of(b.z, b.w)};
}

}  // namespace

void CudaKernels::round(Tensor& to, const Matrix& x, Device& device) {
  static_assert(rounded_stride(1) == kEach);
  const auto* const data = static_cast<const float*>(x.data);
  if (!to) to = Tensor::empty({x.rows, rounded_stride(x.columns)}, DType::bf16, device);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % sizeof(float4) == 0 && x.stride % 4 == 0;
  launch(stream, "rounding a factor", round_kernel, blocks_of(to.numel() / kEach, kBlock), kBlock, 0, to.data<uint4>(),
         data, x.rows, x.columns, x.stride, aligned);
}

}  // namespace grt::cuda
