// The gated recurrent update: a warp for each row, whose lanes all draw the row's noise.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

__device__ float shift_of(std::int64_t row, const GateNoise& noise) {
  return noise.sigma == 0 ? 0.0f : noise.sigma * normal(noise.key, static_cast<std::uint64_t>(row));
}

__global__ void gate_mix_kernel(float* y, const float* z, const float* h, const float* o, std::int64_t rows,
                                std::int64_t width, GateNoise noise) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const float shift = shift_of(row, noise), inverse = 1 / noise.tau;
  for (std::int64_t i = row * width + lane_index(); i < (row + 1) * width; i += kWarp) {
    const Sigmoid g = sigmoid(z[i] * inverse + shift);
    y[i] = g.value * h[i] + g.rest * o[i];
  }
}

// With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
// z is saved, not g, and eps is drawn again from its key.
__global__ void gate_mix_backward_kernel(float* dz, bool add_z, float* dh, bool add_h, float* d_o, bool add_o,
                                         const float* dy, const float* z, const float* h, const float* o,
                                         std::int64_t rows, std::int64_t width, GateNoise noise) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const float shift = shift_of(row, noise), inverse = 1 / noise.tau;
  for (std::int64_t i = row * width + lane_index(); i < (row + 1) * width; i += kWarp) {
    const Sigmoid g = sigmoid(z[i] * inverse + shift);
    const float d = dy[i];
    if (dz) put(dz + i, add_z, d * (h[i] - o[i]) * g.value * g.rest * inverse);
    if (dh) put(dh + i, add_h, d * g.value);
    if (d_o) put(d_o + i, add_o, d * g.rest);
  }
}

}  // namespace

void CudaKernels::gate_mix(const Tensor& y, const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  const std::int64_t rows = z.shape().rows();
  launch(stream, "gate_mix", gate_mix_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, f32(y), f32(z),
         f32(h), f32(o), rows, z.shape().last(), noise);
}

void CudaKernels::gate_mix_backward(const Into& dz, const Into& dh, const Into& d_o, const Tensor& dy, const Tensor& z,
                                    const Tensor& h, const Tensor& o, const GateNoise& noise) {
  if (!dz && !dh && !d_o) return;
  const std::int64_t rows = z.shape().rows();
  launch(stream, "gate_mix_backward", gate_mix_backward_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp,
         0, f32(dz.to), dz.add, f32(dh.to), dh.add, f32(d_o.to), d_o.add, f32(dy), f32(z), f32(h), f32(o), rows,
         z.shape().last(), noise);
}

}  // namespace grt::cuda
