// Cross-entropy and distillation with their gradients, a row of logits at a time: it is read from memory once; and
// binary cross-entropy, element by element.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

template <class T>
T largest(const T* x, std::int64_t n) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  Vec<T> top = broadcast(kLowest);
  for_vectors<T>(n, [&](std::int64_t i, int count) { top = max<T>(top, load_part(x + i, count, kLowest)); });
  return largest_of<T>(top);
}

// Sum of exp(x - top): in T within runs of 4096, over these in double.
template <class T>
double sum_exp(const T* x, std::int64_t n, T top) {
  constexpr std::int64_t kRun = 4096;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    Vec<T> sum{};
    for_vectors<T>(std::min(kRun, n - begin), [&, x = x + begin](std::int64_t i, int count) {
      sum += exp(load_part(x + i, count, -std::numeric_limits<T>::infinity()) - top);
    });
    total += static_cast<double>(sum_of<T>(sum));
  }
  return total;
}

}  // namespace

// With p = softmax(x):  loss = -log p[target],  d loss / dx = p - one-hot(target).
void CpuKernels::cross_entropy(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& targets,
                               std::int64_t vocab, double scale) {
  visit_real(logits.dtype(), [&]<class T>() {
    const std::int64_t stride = logits.shape().last();
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / stride);
    parallel_for(logits.shape().rows(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* const x = logits.data<T>() + r * stride;
        const std::int32_t target = targets.data<std::int32_t>()[r];
        const T top = largest(x, vocab);
        const double total = sum_exp(x, vocab, top);
        losses.data<T>()[r] =
            static_cast<T>(std::log(total) + (static_cast<double>(top) - static_cast<double>(x[target])));
        if (!dlogits) continue;
        T* const dx = dlogits.to.data<T>() + r * stride;
        const T factor = static_cast<T>(scale / total);
        for_vectors<T>(vocab, [&](std::int64_t i, int count) {
          const Vec<T> d = factor * exp(load_part(x + i, count) - top);
          store_part(dx + i, dlogits.add ? load_part(dx + i, count) + d : d, count);
        });
        dx[target] -= static_cast<T>(scale);
        if (!dlogits.add) std::fill(dx + vocab, dx + stride, T(0));
      }
    });
  });
}

namespace {

// Sums over a row, with x and y the student's and the teacher's logits less their largest:
struct RowSums {
  double one, student, teacher;  // of e^x, e^(x/t), e^(y/t)
  double apart;                  // of e^(y/t) (y - x) / t
};

template <class T>
RowSums row_sums(const T* x, const T* y, std::int64_t n, T top_x, T top_y, T inverse_t) {
  constexpr std::int64_t kRun = 4096;                     // in T within a run, over the runs in double
  const T beyond = 1000 * std::max<T>(1, 1 / inverse_t);  // below the largest, where every exponential is 0
  RowSums sums{};
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    Vec<T> one{}, student{}, teacher{}, apart{};
    for_vectors<T>(std::min(kRun, n - begin), [&, x = x + begin, y = y + begin](std::int64_t i, int count) {
      const Vec<T> dx = load_part(x + i, count, top_x - beyond) - top_x;
      const Vec<T> dy = load_part(y + i, count, top_y - beyond) - top_y;
      const Vec<T> weight = exp(dy * inverse_t);
      one += exp(dx);
      student += exp(dx * inverse_t);
      teacher += weight;
      apart += weight * ((dy - dx) * inverse_t);
    });
    sums.one += static_cast<double>(sum_of<T>(one));
    sums.student += static_cast<double>(sum_of<T>(student));
    sums.teacher += static_cast<double>(sum_of<T>(teacher));
    sums.apart += static_cast<double>(sum_of<T>(apart));
  }
  return sums;
}

}  // namespace

// With q, p the student's and teacher's distributions at temperature t:  KL = sum p (ln p - ln q),
// t^2 dKL/dx = t (q - p). Of equal logits both are exactly 0.
void CpuKernels::distillation(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& teacher,
                              const Tensor& targets, std::int64_t vocab, const Distillation& rule, double scale) {
  visit_real(logits.dtype(), [&]<class T>() {
    const std::int64_t stride = logits.shape().last(), teacher_stride = teacher.shape().last();
    const double w = rule.weight, t = rule.temperature;
    const T inverse_t = static_cast<T>(1 / t), soft = static_cast<T>(scale * w * t);
    parallel_for(
        logits.shape().rows(), std::max<std::int64_t>(1, 8192 / stride), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const T *const x = logits.data<T>() + r * stride, *const y = teacher.data<T>() + r * teacher_stride;
            const std::int32_t target = targets.data<std::int32_t>()[r];
            const T top_x = largest(x, vocab), top_y = largest(y, vocab);
            const RowSums sums = row_sums(x, y, vocab, top_x, top_y, inverse_t);
            const double ce = std::log(sums.one) + (static_cast<double>(top_x) - static_cast<double>(x[target]));
            const double kl = sums.apart / sums.teacher + (std::log(sums.student) - std::log(sums.teacher));
            losses.data<T>()[r] = static_cast<T>((1 - w) * ce + w * t * t * kl);
            if (!dlogits) continue;
            T* const dx = dlogits.to.data<T>() + r * stride;
            const T hard = static_cast<T>(scale * (1 - w) / sums.one), student = static_cast<T>(sums.student),
                    taught = static_cast<T>(sums.teacher);
            for_vectors<T>(vocab, [&](std::int64_t i, int count) {
              const Vec<T> a = load_part(x + i, count) - top_x, b = load_part(y + i, count) - top_y;
              // Quotients, which are not fused with the subtraction: equal ones cancel.
              const Vec<T> apart = exp(a * inverse_t) / student - exp(b * inverse_t) / taught;
              const Vec<T> d = hard * exp(a) + soft * apart;
              store_part(dx + i, dlogits.add ? load_part(dx + i, count) + d : d, count);
            });
            dx[target] -= static_cast<T>(scale * (1 - w));
            if (!dlogits.add) std::fill(dx + vocab, dx + stride, T(0));
          }
        });
  });
}

// log(1 + e^-|z|) + max(z, 0) - t z: no digits are lost for large |z|.
void CpuKernels::bce_with_logits(const Tensor& losses, const Tensor& z, const Tensor& targets) {
  visit_real(z.dtype(), [&]<class T>() {
    parallel_for(z.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T x = z.data<T>()[i], t = targets.data<T>()[i];
        const T rest = x > 0 ? (1 - t) * x : -t * x;
        losses.data<T>()[i] = rest + std::log1p(std::exp(-std::abs(x)));
      }
    });
  });
}

void CpuKernels::bce_with_logits_backward(const Into& dz, const Tensor& dloss, const Tensor& z, const Tensor& targets,
                                          double factor) {
  if (!dz) return;
  visit_real(z.dtype(), [&]<class T>() {
    const T share = static_cast<T>(factor) * dloss.data<T>()[0];
    parallel_for(z.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T e = std::exp(-std::abs(z.data<T>()[i])), s = (z.data<T>()[i] > 0 ? 1 : e) / (1 + e);
        T& to = dz.to.data<T>()[i];
        to = (dz.add ? to : T(0)) + share * (s - targets.data<T>()[i]);
      }
    });
  });
}

}  // namespace grt::cpu
