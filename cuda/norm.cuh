// Layer normalization of one row by a warp, and its derivative: what the kernels that end in one share.
#pragma once

#include "cuda/device.cuh"

namespace grt::cuda {

// Where the results of a layernorm go.
struct NormOut {
  float *y, *mean, *rstd;
};

// y = (x - mean) rstd w + b of one row; b may be null. A first mean, then the mean and the square of what is left of x
// without it: exact for a large mean too.
__device__ inline void normalize(const NormOut& out, const float* x, const float* w, const float* b, std::int64_t row,
                                 std::int64_t width, float eps) {
  const float* const in = x + row * width;
  const float n = static_cast<float>(width);
  float sum = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) sum += in[c];
  const float rough = warp_sum(sum) / n;
  float rest = 0, squares = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) {
    const float d = in[c] - rough;
    rest += d;
    squares += d * d;
  }
  const float shift = warp_sum(rest) / n, variance = fmaxf(0, warp_sum(squares) / n - shift * shift);
  const float mean = rough + shift, rstd = 1 / sqrtf(variance + eps);
  if (lane_index() == 0) {
    out.mean[row] = mean;
    out.rstd[row] = rstd;
  }
  for (std::int64_t c = lane_index(); c < width; c += kWarp)
    out.y[row * width + c] = (in[c] - mean) * rstd * w[c] + (b ? b[c] : 0.0f);
}

// With n = (x - mean) rstd and dn = dy w:  dx = rstd (dn - mean(dn) - n mean(dn n)).
struct NormGradient {
  const float *dy, *x, *w;  // dy, x: of the row; no dy: no gradient
  float mean, rstd, a = 0, b = 0;

  __device__ NormGradient(const float* dys, const float* xs, const float* weight, const float* means,
                          const float* rstds, std::int64_t row, std::int64_t width)
      : dy(dys ? dys + row * width : nullptr), x(xs + row * width), w(weight), mean(means[row]), rstd(rstds[row]) {
    if (!dy) return;
    float sum = 0, product = 0;
    for (std::int64_t c = lane_index(); c < width; c += kWarp) {
      const float dn = dy[c] * w[c];
      sum += dn;
      product += dn * ((x[c] - mean) * rstd);
    }
    a = warp_sum(sum) / static_cast<float>(width);
    b = warp_sum(product) / static_cast<float>(width);
  }
  __device__ float at(std::int64_t c) const { return dy ? rstd * (dy[c] * w[c] - a - (x[c] - mean) * rstd * b) : 0.0f; }
};

// dw = the sum over rows of dy n, db = that of dy (norm.cu).
void norm_parameter_gradients(cudaStream_t stream, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                              const Tensor& mean, const Tensor& rstd);

}  // namespace grt::cuda
