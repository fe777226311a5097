// A bias for products of which cuBLASLt has no algorithm that adds it.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

__global__ void bias_kernel(float* y, std::int64_t stride, std::int64_t n, std::int64_t columns, const float* bias) {
  const std::int64_t i = global_index();
  if (i < n) y[i / columns * stride + i % columns] += bias[i % columns];
}

}  // namespace

void add_bias(float* y, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* bias,
              cudaStream_t stream) {
  const std::int64_t n = rows * columns;
  launch(stream, "add_bias", bias_kernel, blocks_of(n, kBlock), kBlock, 0, y, stride, n, columns, bias);
}

}  // namespace grt::cuda
