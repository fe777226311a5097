// Layer normalization: a warp for each row; the gradients of the parameters in parts of rows.
#include "cuda/norm.cuh"

#include "cuda/reduce.cuh"

namespace grt::cuda {
namespace {

__global__ void layernorm_kernel(NormOut out, const float* x, const float* w, const float* b, std::int64_t rows,
                                 std::int64_t width, float eps) {
  const std::int64_t row = warp_row();
  if (row < rows) normalize(out, x, w, b, row, width, eps);
}

// Each lane reads again what it alone has written of the sum.
__global__ void add_layernorm_kernel(float* sum, NormOut out, const float* a, const float* b, const float* w,
                                     const float* bias, std::int64_t rows, std::int64_t width, float eps) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  for (std::int64_t i = row * width + lane_index(); i < (row + 1) * width; i += kWarp) sum[i] = a[i] + b[i];
  normalize(out, sum, w, bias, row, width, eps);
}

__global__ void layernorm_input_kernel(float* dx, bool add, const float* dy, const float* x, const float* w,
                                       const float* mean, const float* rstd, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const NormGradient gradient(dy, x, w, mean, rstd, row, width);
  for (std::int64_t c = lane_index(); c < width; c += kWarp) put(dx + row * width + c, add, gradient.at(c));
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
  launch(stream, "layernorm", layernorm_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0,
         NormOut{f32(y), f32(mean), f32(rstd)}, f32(x), f32(w), f32(b), rows, x.shape().last(), eps);
}

void CudaKernels::add_layernorm(const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                                const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, float eps) {
  const std::int64_t rows = a.shape().rows();
  launch(stream, "add_layernorm", add_layernorm_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0,
         f32(sum), NormOut{f32(y), f32(mean), f32(rstd)}, f32(a), f32(b), f32(w), f32(bias), rows, a.shape().last(),
         eps);
}

void CudaKernels::layernorm_backward(const Into& dx, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                                     const Tensor& w, const Tensor& mean, const Tensor& rstd) {
  const std::int64_t rows = x.shape().rows();
  norm_parameter_gradients(stream, dw, db, dy, x, mean, rstd);
  if (dx)
    launch(stream, "layernorm_backward", layernorm_input_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp,
           0, f32(dx.to), dx.add, f32(dy), f32(x), f32(w), f32(mean), f32(rstd), rows, x.shape().last());
}

void norm_parameter_gradients(cudaStream_t stream, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                              const Tensor& mean, const Tensor& rstd) {
  if (!dw && !db) return;
  const std::int64_t rows = x.shape().rows(), width = x.shape().last(), count = row_parts(rows);
  const Tensor parts = Tensor::empty({count, 2, width}, DType::f32, x.device());
  launch(stream, "layernorm_backward", layernorm_parameters_kernel, blocks_of(width, kBlock, count), kBlock, 0,
         f32(parts), f32(dy), f32(x), f32(mean), f32(rstd), rows, width, part_rows(rows));
  if (dw) add_parts(stream, dw, f32(parts), count, 2 * width);
  if (db) add_parts(stream, db, f32(parts) + width, count, 2 * width);
}

}  // namespace grt::cuda
