// Layer normalization: a warp for each row; the gradients of the parameters in parts of rows.
#include "cuda/reduce.cuh"

namespace grt::cuda {
namespace {

struct Moments {
  float mean, variance;
};

// A first mean, then the mean and the square of what is left of x without it: exact for a large mean too.
__device__ Moments moments(const float* x, std::int64_t width) {
  const float n = static_cast<float>(width);
  float sum = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) sum += x[c];
  const float rough = warp_sum(sum) / n;
  float rest = 0, squares = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) {
    const float d = x[c] - rough;
    rest += d;
    squares += d * d;
  }
  const float shift = warp_sum(rest) / n;
  return {rough + shift, fmaxf(0, warp_sum(squares) / n - shift * shift)};
}

__global__ void layernorm_kernel(float* y, float* mean, float* rstd, const float* x, const float* w, const float* b,
                                 std::int64_t rows, std::int64_t width, float eps) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const float* const in = x + row * width;
  const Moments m = moments(in, width);
  const float scale = 1 / sqrtf(m.variance + eps);
  if (lane_index() == 0) {
    mean[row] = m.mean;
    rstd[row] = scale;
  }
  for (std::int64_t c = lane_index(); c < width; c += kWarp)
    y[row * width + c] = (in[c] - m.mean) * scale * w[c] + (b ? b[c] : 0.0f);
}

// With n = (x - mean) rstd and dn = dy w:  dx = rstd (dn - mean(dn) - n mean(dn n)).
__global__ void layernorm_input_kernel(float* dx, bool add, const float* dy, const float* x, const float* w,
                                       const float* mean, const float* rstd, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const float *const d = dy + row * width, *const in = x + row * width;
  const float mu = mean[row], scale = rstd[row];
  float sum = 0, product = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) {
    const float dn = d[c] * w[c];
    sum += dn;
    product += dn * ((in[c] - mu) * scale);
  }
  const float a = warp_sum(sum) / static_cast<float>(width), b = warp_sum(product) / static_cast<float>(width);
  for (std::int64_t c = lane_index(); c < width; c += kWarp)
    put(dx + row * width + c, add, scale * (d[c] * w[c] - a - (in[c] - mu) * scale * b));
}

// dw = sum dy n, db = sum dy over the rows of a part, side by side. A thread for each column of part blockIdx.y.
__global__ void layernorm_parameters_kernel(float* parts, const float* dy, const float* x, const float* mean,
                                            const float* rstd, std::int64_t rows, std::int64_t width,
                                            std::int64_t each) {
  const std::int64_t c = global_index(), begin = blockIdx.y * each;
  if (c >= width) return;
  float dw = 0, db = 0;
  for (std::int64_t r = begin; r < std::min(begin + each, rows); ++r) {
    const float d = dy[r * width + c];
    dw += d * ((x[r * width + c] - mean[r]) * rstd[r]);
    db += d;
  }
  parts[blockIdx.y * 2 * width + c] = dw;
  parts[(blockIdx.y * 2 + 1) * width + c] = db;
}

}  // namespace

void CudaKernels::layernorm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& w,
                            const Tensor& b, float eps) {
  const std::int64_t rows = x.shape().rows();
  launch(stream, "layernorm", layernorm_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, f32(y),
         f32(mean), f32(rstd), f32(x), f32(w), f32(b), rows, x.shape().last(), eps);
}

void CudaKernels::layernorm_backward(const Into& dx, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                                     const Tensor& w, const Tensor& mean, const Tensor& rstd) {
  const std::int64_t rows = x.shape().rows(), width = x.shape().last();
  if (dw || db) {
    const std::int64_t count = row_parts(rows);
    const Tensor parts = Tensor::empty({count, 2, width}, DType::f32, x.device());
    launch(stream, "layernorm_backward", layernorm_parameters_kernel, blocks_of(width, kBlock, count), kBlock, 0,
           f32(parts), f32(dy), f32(x), f32(mean), f32(rstd), rows, width, part_rows(rows));
    if (dw) add_parts(stream, dw, f32(parts), count, 2 * width);
    if (db) add_parts(stream, db, f32(parts) + width, count, 2 * width);
  }
  if (dx)
    launch(stream, "layernorm_backward", layernorm_input_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp,
           0, f32(dx.to), dx.add, f32(dy), f32(x), f32(w), f32(mean), f32(rstd), rows, width);
}

}  // namespace grt::cuda
