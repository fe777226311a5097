// The gated update, alone and together with what the next recurrence reads: a warp for each row, whose lanes all draw
// the row's noise.
#include "cuda/norm.cuh"

namespace grt::cuda {
namespace {

// What the update of (R, C) tensors reads.
struct Update {
  const float *z, *h, *o;
  std::int64_t rows, width;
  GateNoise noise;
};

Update update(const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  return {f32(z), f32(h), f32(o), z.shape().rows(), z.shape().last(), noise};
}

// The gate of one row.
struct Gate {
  float inverse, shift;

  __device__ Gate(const GateNoise& noise, std::int64_t row)
      : inverse(1 / noise.tau),
        shift(noise.sigma == 0 ? 0.0f : noise.sigma * normal(noise.key, static_cast<std::uint64_t>(row))) {}
  __device__ Sigmoid operator()(float z) const { return sigmoid(z * inverse + shift); }
};

__device__ void mix(float* y, const Update& u, std::int64_t row) {
  const Gate gate(u.noise, row);
  for (std::int64_t i = row * u.width + lane_index(); i < (row + 1) * u.width; i += kWarp) {
    const Sigmoid g = gate(u.z[i]);
    y[i] = g.value * u.h[i] + g.rest * u.o[i];
  }
}

struct Gradients {
  float *dz, *dh, *d_o;
  bool add_z, add_h, add_o;

  Gradients(const Into& z, const Into& h, const Into& o)
      : dz(f32(z.to)), dh(f32(h.to)), d_o(f32(o.to)), add_z(z.add), add_h(h.add), add_o(o.add) {}
  // With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
  // z is saved, not g, and eps is drawn again from its key.
  __device__ void put_at(std::int64_t i, const Update& u, const Gate& gate, float dy) const {
    const Sigmoid g = gate(u.z[i]);
    if (dz) put(dz + i, add_z, dy * (u.h[i] - u.o[i]) * g.value * g.rest * gate.inverse);
    if (dh) put(dh + i, add_h, dy * g.value);
    if (d_o) put(d_o + i, add_o, dy * g.rest);
  }
};

__global__ void gate_mix_kernel(float* y, Update u) {
  const std::int64_t row = warp_row();
  if (row < u.rows) mix(y, u, row);
}

__global__ void gate_mix_backward_kernel(Gradients gradients, const float* dy, Update u) {
  const std::int64_t row = warp_row();
  if (row >= u.rows) return;
  const Gate gate(u.noise, row);
  for (std::int64_t i = row * u.width + lane_index(); i < (row + 1) * u.width; i += kWarp)
    gradients.put_at(i, u, gate, dy[i]);
}

// Each lane reads again what it alone has written of y.
__global__ void gate_step_kernel(float* y, float* noisy, NormOut normed, Update u, const float* w,
                                 StateNoise state_noise, float eps) {
  const std::int64_t row = warp_row();
  if (row >= u.rows) return;
  mix(y, u, row);
  if (noisy)
    for (std::int64_t i = row * u.width + lane_index(); i < (row + 1) * u.width; i += kWarp)
      noisy[i] = y[i] + state_noise.sigma * normal(state_noise.key, static_cast<std::uint64_t>(i));
  normalize(normed, y, w, nullptr, row, u.width, eps);
}

struct NormSaved {
  const float *w, *mean, *rstd;
};

// dy, dnoisy, dnormed: may be null, but not all.
__global__ void gate_step_backward_kernel(Gradients gradients, const float* dy, const float* dnoisy,
                                          const float* dnormed, const float* y, NormSaved norm, Update u) {
  const std::int64_t row = warp_row();
  if (row >= u.rows) return;
  const Gate gate(u.noise, row);
  const NormGradient through(dnormed, y, norm.w, norm.mean, norm.rstd, row, u.width);
  for (std::int64_t c = lane_index(); c < u.width; c += kWarp) {
    const std::int64_t i = row * u.width + c;
    gradients.put_at(i, u, gate, (dy ? dy[i] : 0.0f) + (dnoisy ? dnoisy[i] : 0.0f) + through.at(c));
  }
}

}  // namespace

void CudaKernels::gate_mix(const Tensor& y, const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  const Update u = update(z, h, o, noise);
  launch(stream, "gate_mix", gate_mix_kernel, blocks_of(u.rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, f32(y), u);
}

void CudaKernels::gate_mix_backward(const Into& dz, const Into& dh, const Into& d_o, const Tensor& dy, const Tensor& z,
                                    const Tensor& h, const Tensor& o, const GateNoise& noise) {
  if (!dz && !dh && !d_o) return;
  const Update u = update(z, h, o, noise);
  launch(stream, "gate_mix_backward", gate_mix_backward_kernel, blocks_of(u.rows, kRowsPerBlock), kRowsPerBlock * kWarp,
         0, Gradients(dz, dh, d_o), f32(dy), u);
}

void CudaKernels::gate_step(const NextState& next, const Tensor& z, const Tensor& h, const Tensor& o, const Tensor& w,
                            const GateNoise& noise, const StateNoise& state_noise, float eps) {
  const Update u = update(z, h, o, noise);
  launch(stream, "gate_step", gate_step_kernel, blocks_of(u.rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0, f32(next.y),
         f32(next.noisy), NormOut{f32(next.normed), f32(next.mean), f32(next.rstd)}, u, f32(w), state_noise, eps);
}

void CudaKernels::gate_step_backward(const Into& dz, const Into& dh, const Into& d_o, const Into& dw,
                                     const NextStateGradients& d, const NextState& next, const Tensor& z,
                                     const Tensor& h, const Tensor& o, const Tensor& w, const GateNoise& noise) {
  if (d.normed) norm_parameter_gradients(stream, dw, {}, d.normed, next.y, next.mean, next.rstd);
  if (!dz && !dh && !d_o) return;
  const Update u = update(z, h, o, noise);
  launch(stream, "gate_step_backward", gate_step_backward_kernel, blocks_of(u.rows, kRowsPerBlock),
         kRowsPerBlock * kWarp, 0, Gradients(dz, dh, d_o), f32(d.y), f32(d.noisy), f32(d.normed), f32(next.y),
         NormSaved{f32(w), f32(next.mean), f32(next.rstd)}, u);
}

}  // namespace grt::cuda
