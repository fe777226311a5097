// The optimizer's update: one pass over parameters, moments and gradients.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

struct Step {
  float keep, scale, eps, beta1, rest1, beta2, rest2, rate, v_correction;
};

__global__ void adamw_kernel(float* p, float* m, float* v, const float* g, std::int64_t n, Step s) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const float d = s.scale * g[i];
  const float mean = s.beta1 * m[i] + s.rest1 * d, square = s.beta2 * v[i] + s.rest2 * d * d;
  m[i] = mean;
  v[i] = square;
  p[i] = p[i] * s.keep - s.rate * mean / (sqrtf(square * s.v_correction) + s.eps);
}

}  // namespace

void CudaKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, const AdamW& step) {
  const auto narrow = [](double x) { return static_cast<float>(x); };
  const Step s{narrow(1 - step.lr * step.weight_decay),
               narrow(step.grad_scale),
               narrow(step.eps),
               narrow(step.beta1),
               narrow(1 - step.beta1),
               narrow(step.beta2),
               narrow(1 - step.beta2),
               narrow(step.lr * step.m_correction),
               narrow(step.v_correction)};
  launch(stream, "adamw", adamw_kernel, blocks_of(p.numel(), kBlock), kBlock, 0, f32(p), f32(m), f32(v), f32(g),
         p.numel(), s);
}

}  // namespace grt::cuda
