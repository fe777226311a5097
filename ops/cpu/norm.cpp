// Layer normalization, a row at a time.
#include <cmath>

#include "ops/cpu/cpu.h"
#include "ops/cpu/reduce.h"

namespace grt::cpu {
namespace {

template <class T>
struct Row {
  const T *x, *w;
  std::int64_t width;
};

template <class T>
struct Moments {
  T mean, variance;
};

// A first mean, then the mean and the square of what is left of x without it: exact for a large mean too.
template <class T>
Moments<T> moments(const T* x, std::int64_t width) {
  Vec<T> sum{};
  for_vectors<T>(width, [&](std::int64_t c, int count) { sum += load_part(x + c, count); });
  const T rough = sum_of<T>(sum) / T(width);
  Vec<T> rest{}, squares{};
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> d = load_part(x + c, count, rough) - rough;
    rest += d;
    squares += d * d;
  });
  const T shift = sum_of<T>(rest) / T(width);
  return {rough + shift, std::max(T(0), sum_of<T>(squares) / T(width) - shift * shift)};
}

// dw += dy n, db += dy, with n = (x - mean) rstd.
template <class T>
void add_parameter_gradients(T* dw, T* db, const T* dy, const T* x, T mean, T rstd, std::int64_t width) {
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> d = load_part(dy + c, count), n = (load_part(x + c, count) - mean) * rstd;
    store_part(dw + c, load_part(dw + c, count) + d * n, count);
    store_part(db + c, load_part(db + c, count) + d, count);
  });
}

// With n = (x - mean) rstd and dn = dy w:  dx = rstd (dn - mean(dn) - n mean(dn n)).
template <class T>
void input_gradient(T* dx, bool add, const T* dy, const T* x, const T* w, T mean, T rstd, std::int64_t width) {
  Vec<T> sum{}, product{};
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> dn = load_part(dy + c, count) * load_part(w + c, count);
    sum += dn;
    product += dn * ((load_part(x + c, count) - mean) * rstd);
  });
  const T a = sum_of<T>(sum) / T(width), b = sum_of<T>(product) / T(width);
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> dn = load_part(dy + c, count) * load_part(w + c, count), n = (load_part(x + c, count) - mean) * rstd;
    const Vec<T> d = rstd * (dn - a - n * b);
    store_part(dx + c, add ? load_part(dx + c, count) + d : d, count);
  });
}

}  // namespace

void CpuKernels::layernorm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& w,
                           const Tensor& b, float eps) {
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t width = x.shape().last();
    const T* const weight = w.data<T>();
    const T* const bias = b ? b.data<T>() : nullptr;
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / width);
    parallel_for(x.shape().rows(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* const in = x.data<T>() + r * width;
        const auto [mu, variance] = moments(in, width);
        const T scale = 1 / std::sqrt(variance + T(eps));
        mean.data<T>()[r] = mu;
        rstd.data<T>()[r] = scale;
        for_vectors<T>(width, [&, mu = mu, out = y.data<T>() + r * width](std::int64_t c, int count) {
          const Vec<T> n = (load_part(in + c, count) - mu) * scale;
          const Vec<T> shift = bias ? load_part(bias + c, count) : Vec<T>{};
          store_part(out + c, n * load_part(weight + c, count) + shift, count);
        });
      }
    });
  });
}

void CpuKernels::layernorm_backward(const Into& dx, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                                    const Tensor& w, const Tensor& mean, const Tensor& rstd) {
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t rows = x.shape().rows(), width = x.shape().last(), block = row_block(rows);
    const bool parameters = dw || db;
    Tensor parts;  // of each block of rows, dw and db side by side
    if (parameters) parts = Tensor::empty({row_blocks(rows), 2 * width}, x.dtype(), x.device());
    parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
      T* const part = parameters ? parts.data<T>() + begin / block * 2 * width : nullptr;
      if (parameters) std::fill_n(part, 2 * width, T(0));
      for (std::int64_t r = begin; r < end; ++r) {
        const T *const d = dy.data<T>() + r * width, *const in = x.data<T>() + r * width;
        const T mu = mean.data<T>()[r], scale = rstd.data<T>()[r];
        if (parameters) add_parameter_gradients(part, part + width, d, in, mu, scale, width);
        if (dx) input_gradient(dx.to.data<T>() + r * width, dx.add, d, in, w.data<T>(), mu, scale, width);
      }
    });
    if (dw) add_blocks(dw, parts.data<T>(), row_blocks(rows), 2 * width);
    if (db) add_blocks(db, parts.data<T>() + width, row_blocks(rows), 2 * width);
  });
}

}  // namespace grt::cpu
