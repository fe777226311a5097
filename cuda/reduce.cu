// Reductions, in an order that depends on shapes alone.
#include "cuda/reduce.cuh"

#include <vector>

namespace grt::cuda {
namespace {

constexpr std::int64_t kMostParts = 1024, kPerThread = 8;

// A thread for each column of a part, blockIdx.y.
__global__ void sum_rows_kernel(float* parts, const float* x, std::int64_t rows, std::int64_t width,
                                std::int64_t each) {
  const std::int64_t c = global_index(), begin = blockIdx.y * each;
  if (c >= width) return;
  float sum = 0;
  for (std::int64_t r = begin; r < std::min(begin + each, rows); ++r) sum += x[r * width + c];
  parts[blockIdx.y * width + c] = sum;
}

__global__ void add_parts_kernel(float* y, bool add, std::int64_t width, const float* parts, std::int64_t count,
                                 std::int64_t stride) {
  const std::int64_t c = global_index();
  if (c >= width) return;
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += parts[i * stride + c];
  put(y + c, add, sum);
}

struct Value {
  __device__ double operator()(float x) const { return static_cast<double>(x); }
};
struct Square {
  __device__ double operator()(float x) const { return static_cast<double>(x) * static_cast<double>(x); }
};
struct NotFinite {
  __device__ double operator()(float x) const { return x - x == 0 ? 0.0 : 1.0; }  // infinity - infinity is NaN
};

template <class F>
__global__ void sum_kernel(double* parts, const float* x, std::int64_t n, F f) {
  double sum = 0;
  for (std::int64_t i = global_index(); i < n; i += std::int64_t{gridDim.x} * blockDim.x) sum += f(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class T>
__global__ void finish_sum_kernel(T* y, bool add, const double* parts, std::int64_t count, double factor) {
  double sum = 0;
  for (std::int64_t i = lane_index(); i < count; i += kWarp) sum += parts[i];
  sum = warp_sum(sum);
  if (lane_index() == 0) *y = static_cast<T>(factor * sum + (add ? static_cast<double>(*y) : 0.0));
}

// The sums of f over x, one for each block.
template <class F>
Tensor sums(cudaStream_t stream, const Tensor& x, F f) {
  const std::int64_t n = x.numel(), parts = std::clamp<std::int64_t>(ceil_div(n, kBlock * kPerThread), 1, kMostParts);
  const Tensor result = Tensor::empty({parts}, DType::f64, x.device());
  launch(stream, "a sum", sum_kernel<F>, blocks_of(parts, 1), kBlock, 0, result.data<double>(), f32(x), n, f);
  return result;
}

double sum_on_host(const Tensor& parts) {
  std::vector<double> values(static_cast<std::size_t>(parts.numel()));
  parts.device().copy(values.data(), parts.raw(), parts.bytes());
  parts.device().sync();
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

}  // namespace

void add_parts(cudaStream_t stream, const Into& y, const float* parts, std::int64_t count, std::int64_t stride) {
  const std::int64_t width = y.to.numel();
  launch(stream, "add_parts", add_parts_kernel, blocks_of(width, kBlock), kBlock, 0, f32(y.to), y.add, width, parts,
         count, stride);
}

void CudaKernels::sum_rows(const Into& y, const Tensor& x) {
  if (!y) return;
  const std::int64_t rows = x.shape().rows(), width = x.shape().last(), parts = row_parts(rows);
  const Tensor partial = Tensor::empty({parts, width}, DType::f32, x.device());
  launch(stream, "sum_rows", sum_rows_kernel, blocks_of(width, kBlock, parts), kBlock, 0, f32(partial), f32(x), rows,
         width, part_rows(rows));
  add_parts(stream, y, f32(partial), parts, width);
}

void CudaKernels::sum(const Into& y, const Tensor& x, double factor) {
  if (!y) return;
  const Tensor parts = sums(stream, x, Value{});
  launch(stream, "sum", finish_sum_kernel<float>, 1, kWarp, 0, f32(y.to), y.add, parts.data<double>(), parts.numel(),
         factor);
}

void CudaKernels::sum_squares(const Tensor& y, const Tensor& x) {
  const Tensor parts = sums(stream, x, Square{});
  launch(stream, "sum_squares", finish_sum_kernel<double>, 1, kWarp, 0, y.data<double>(), false, parts.data<double>(),
         parts.numel(), 1.0);
}

std::int64_t CudaKernels::count_not_finite(const Tensor& x) {
  return static_cast<std::int64_t>(sum_on_host(sums(stream, x, NotFinite{})));
}

}  // namespace grt::cuda
