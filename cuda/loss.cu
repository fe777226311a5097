// Cross-entropy and distillation with their gradients: a block of threads for each row of logits; and binary
// cross-entropy, a thread for each element.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

__device__ float largest(const float* x, std::int64_t n) {
  float top = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < n; i += kBlock) top = fmaxf(top, x[i]);
  return block_max(top);
}

// With p = softmax(x):  loss = -log p[target],  d loss / dx = p - one-hot(target). dx may be x.
__global__ void cross_entropy_kernel(float* losses, float* dlogits, bool add, const float* logits,
                                     const std::int32_t* targets, std::int64_t stride, std::int64_t vocab,
                                     double scale) {
  const std::int64_t row = blockIdx.x, target = targets[row];
  const float* const x = logits + row * stride;
  const float at_target = x[target];  // read before anything is written: the sums below are barriers
  const float top = largest(x, vocab);
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < vocab; i += kBlock) sum += expf(x[i] - top);
  const double total = block_sum(static_cast<double>(sum));
  if (threadIdx.x == 0)
    losses[row] = static_cast<float>(log(total) + (static_cast<double>(top) - static_cast<double>(at_target)));
  if (!dlogits) return;
  float* const dx = dlogits + row * stride;
  const float factor = static_cast<float>(scale / total);
  for (std::int64_t i = threadIdx.x; i < vocab; i += kBlock)
    put(dx + i, add, factor * expf(x[i] - top) - (i == target ? static_cast<float>(scale) : 0.0f));
  if (!add)
    for (std::int64_t i = vocab + threadIdx.x; i < stride; i += kBlock) dx[i] = 0;
}

struct Rule {
  double weight, temperature;
  float inverse;  // of the temperature
};

// With q, p the student's and teacher's distributions at temperature t:  KL = sum p (ln p - ln q),
// t^2 dKL/dx = t (q - p). Of equal logits both are exactly 0. dx may be x.
__global__ void distillation_kernel(float* losses, float* dlogits, bool add, const float* logits, const float* teacher,
                                    const std::int32_t* targets, std::int64_t stride, std::int64_t teacher_stride,
                                    std::int64_t vocab, Rule rule, double scale) {
  const std::int64_t row = blockIdx.x, target = targets[row];
  const float *const x = logits + row * stride, *const y = teacher + row * teacher_stride;
  const float at_target = x[target], top_x = largest(x, vocab), top_y = largest(y, vocab);
  // Of e^x, e^(x/t), e^(y/t) and e^(y/t) (y - x) / t, x and y less their largest.
  float one = 0, student = 0, taught = 0, apart = 0;
  for (std::int64_t i = threadIdx.x; i < vocab; i += kBlock) {
    const float a = x[i] - top_x, b = y[i] - top_y, weight = expf(b * rule.inverse);
    one += expf(a);
    student += expf(a * rule.inverse);
    taught += weight;
    apart += weight * ((b - a) * rule.inverse);
  }
  const double ones = block_sum(static_cast<double>(one)), students = block_sum(static_cast<double>(student));
  const double teachers = block_sum(static_cast<double>(taught)), gap = block_sum(static_cast<double>(apart));
  const double w = rule.weight, t = rule.temperature;
  if (threadIdx.x == 0) {
    const double ce = log(ones) + (static_cast<double>(top_x) - static_cast<double>(at_target));
    const double kl = gap / teachers + (log(students) - log(teachers));
    losses[row] = static_cast<float>((1 - w) * ce + w * t * t * kl);
  }
  if (!dlogits) return;
  float* const dx = dlogits + row * stride;
  const float hard = static_cast<float>(scale * (1 - w) / ones), soft = static_cast<float>(scale * w * t);
  const float students_sum = static_cast<float>(students), teachers_sum = static_cast<float>(teachers);
  for (std::int64_t i = threadIdx.x; i < vocab; i += kBlock) {
    const float a = x[i] - top_x, b = y[i] - top_y;
    // Quotients, which are not fused with the subtraction: equal ones cancel.
    const float difference = expf(a * rule.inverse) / students_sum - expf(b * rule.inverse) / teachers_sum;
    const float d = hard * expf(a) + soft * difference;
    put(dx + i, add, d - (i == target ? static_cast<float>(scale * (1 - w)) : 0.0f));
  }
  if (!add)
    for (std::int64_t i = vocab + threadIdx.x; i < stride; i += kBlock) dx[i] = 0;
}

// log(1 + e^-|z|) + max(z, 0) - t z: no digits are lost for large |z|.
__global__ void bce_kernel(float* losses, const float* z, const float* targets, std::int64_t n) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const float x = z[i], t = targets[i];
  losses[i] = (x > 0 ? (1 - t) * x : -t * x) + log1pf(expf(-fabsf(x)));
}

__global__ void bce_backward_kernel(float* dz, bool add, const float* dloss, const float* z, const float* targets,
                                    std::int64_t n, float factor) {
  const std::int64_t i = global_index();
  if (i < n) put(dz + i, add, factor * dloss[0] * (sigmoid(z[i]).value - targets[i]));
}

}  // namespace

void CudaKernels::cross_entropy(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& targets,
                                std::int64_t vocab, double scale) {
  launch(stream, "cross_entropy", cross_entropy_kernel, blocks_of(logits.shape().rows(), 1), kBlock, 0, f32(losses),
         f32(dlogits.to), dlogits.add, f32(logits), targets.data<std::int32_t>(), logits.shape().last(), vocab, scale);
}

void CudaKernels::distillation(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& teacher,
                               const Tensor& targets, std::int64_t vocab, const Distillation& rule, double scale) {
  const Rule r{rule.weight, rule.temperature, static_cast<float>(1 / rule.temperature)};
  launch(stream, "distillation", distillation_kernel, blocks_of(logits.shape().rows(), 1), kBlock, 0, f32(losses),
         f32(dlogits.to), dlogits.add, f32(logits), f32(teacher), targets.data<std::int32_t>(), logits.shape().last(),
         teacher.shape().last(), vocab, r, scale);
}

void CudaKernels::bce_with_logits(const Tensor& losses, const Tensor& z, const Tensor& targets) {
  launch(stream, "bce_with_logits", bce_kernel, blocks_of(z.numel(), kBlock), kBlock, 0, f32(losses), f32(z),
         f32(targets), z.numel());
}

void CudaKernels::bce_with_logits_backward(const Into& dz, const Tensor& dloss, const Tensor& z, const Tensor& targets,
                                           double factor) {
  if (!dz) return;
  launch(stream, "bce_with_logits_backward", bce_backward_kernel, blocks_of(z.numel(), kBlock), kBlock, 0, f32(dz.to),
         dz.add, f32(dloss), f32(z), f32(targets), z.numel(), static_cast<float>(factor));
}

}  // namespace grt::cuda
