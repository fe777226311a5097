// What is left of a product where cuBLASLt has no algorithm that adds the bias, or there is nothing to multiply.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

__global__ void put_sum_kernel(float* y, std::int64_t stride, std::int64_t n, std::int64_t columns, const float* plus,
                               const float* bias) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const std::int64_t column = i % columns, at = i / columns * stride + column;
  y[at] = (plus ? plus[at] : 0) + (bias ? bias[column] : 0);
}

}  // namespace

void put_sum(float* y, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* plus,
             const float* bias, cudaStream_t stream) {
  const std::int64_t n = rows * columns;
  launch(stream, "put_sum", put_sum_kernel, blocks_of(n, kBlock), kBlock, 0, y, stride, n, columns, plus, bias);
}

}  // namespace grt::cuda
