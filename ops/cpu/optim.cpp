// The optimizer's update: one pass over parameters, moments and gradients.
#include <cmath>

#include "core/threads.h"
#include "ops/cpu/cpu.h"

namespace grt::cpu {

void CpuKernels::clip_scale(const Tensor& scale, const Tensor& squares, double clip) {
  const double norm = std::sqrt(squares.data<double>()[0]);
  *scale.data<double>() = norm - norm == 0 ? clip_coefficient(norm, clip) : std::nan("");
}

void CpuKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, const AdamW& step) {
  const double lr = step.lr.get(), grad_scale = step.grad_scale.get();
  if (std::isnan(grad_scale)) return;
  visit_real(p.dtype(), [&]<class T>() {
    const T keep = T(1 - lr * step.weight_decay), scale = T(grad_scale), eps = T(step.eps);
    const T beta1 = T(step.beta1), rest1 = T(1 - step.beta1), beta2 = T(step.beta2), rest2 = T(1 - step.beta2);
    const T rate = T(lr * step.m_correction.get()), v_correction = T(step.v_correction.get());
    parallel_for(p.numel(), 65536, [&](std::int64_t begin, std::int64_t end) {
      T* const param = p.data<T>();
      T* const mean = m.data<T>();
      T* const square = v.data<T>();
      const T* const grad = g.data<T>();
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const T d = scale * grad[i];
        mean[i] = beta1 * mean[i] + rest1 * d;
        square[i] = beta2 * square[i] + rest2 * d * d;
        param[i] = param[i] * keep - rate * mean[i] / (std::sqrt(square[i] * v_correction) + eps);
      }
    });
  });
}

}  // namespace grt::cpu
