// The optimizer's update: one pass over parameters, moments and gradients.
#include <limits>

#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

__global__ void clip_scale_kernel(double* scale, const double* squares, double clip) {
  const double norm = sqrt(squares[0]);
  *scale = norm - norm == 0 ? clip_coefficient(norm, clip) : std::numeric_limits<double>::quiet_NaN();
}

// The constants are narrowed to f32 once they are computed, as they would be on the host.
__global__ void adamw_kernel(float* p, float* m, float* v, const float* g, std::int64_t n, AdamW step) {
  const std::int64_t i = global_index();
  const double lr = step.lr.get(), grad_scale = step.grad_scale.get();
  if (i >= n || grad_scale != grad_scale) return;
  const auto narrow = [](double x) { return static_cast<float>(x); };
  const float d = narrow(grad_scale) * g[i];
  const float mean = narrow(step.beta1) * m[i] + narrow(1 - step.beta1) * d;
  const float square = narrow(step.beta2) * v[i] + narrow(1 - step.beta2) * d * d;
  m[i] = mean;
  v[i] = square;
  p[i] = p[i] * narrow(1 - lr * step.weight_decay) -
         narrow(lr * step.m_correction.get()) * mean /
             (sqrtf(square * narrow(step.v_correction.get())) + narrow(step.eps));
}

}  // namespace

void CudaKernels::clip_scale(const Tensor& scale, const Tensor& squares, double clip) {
  launch(stream, "clip_scale", clip_scale_kernel, 1, 1, 0, scale.data<double>(), squares.data<double>(), clip);
}

void CudaKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, const AdamW& step) {
  launch(stream, "adamw", adamw_kernel, blocks_of(p.numel(), kBlock), kBlock, 0, f32(p), f32(m), f32(v), f32(g),
         p.numel(), step);
}

}  // namespace grt::cuda
