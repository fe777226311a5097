// Random numbers: each a function of its key and index (core/philox.h), so nothing is stored.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

// A thread for the four elements that share a Philox block.
__global__ void add_noise_kernel(float* y, const float* x, std::int64_t n, float sigma, NoiseKey key) {
  const std::int64_t begin = 4 * global_index();
  for (std::int64_t i = begin; i < std::min(begin + 4, n); ++i)
    y[i] = x[i] + sigma * normal(key, static_cast<std::uint64_t>(i));
}

__global__ void truncated_normal_kernel(float* y, std::int64_t n, std::int64_t width, float std, NoiseKey key,
                                        Scalar<std::int64_t> first) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const auto row = static_cast<std::uint64_t>(first.get() + i / width), column = static_cast<std::uint64_t>(i % width);
  float x = normal(key, row << 32 | column);
  for (std::uint64_t attempt = 1; !(fabsf(x) <= kNormalCut); ++attempt)
    x = normal(key, row << 32 | attempt << 24 | column);
  y[i] = std * x;
}

}  // namespace

void CudaKernels::add_noise(const Tensor& y, const Tensor& x, float sigma, NoiseKey key) {
  launch(stream, "add_noise", add_noise_kernel, blocks_of(ceil_div(x.numel(), 4), kBlock), kBlock, 0, f32(y), f32(x),
         x.numel(), sigma, key);
}

void CudaKernels::truncated_normal(const Tensor& y, float std, NoiseKey key, Scalar<std::int64_t> first) {
  launch(stream, "truncated_normal", truncated_normal_kernel, blocks_of(y.numel(), kBlock), kBlock, 0, f32(y),
         y.numel(), y.shape().last(), std, key, first);
}

}  // namespace grt::cuda
