// Layer normalization of one row, and its derivative: what the kernels that end in one share.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu/simd.h"

namespace grt::cpu {

// Calls f(r) for every row of `like`, in any order.
template <class F>
void for_rows(const Tensor& like, F&& f) {
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, like.shape().last()));
  parallel_for(like.shape().rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) f(r);
  });
}

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

// What belongs to one row of a layernorm besides its values.
template <class T>
struct NormRow {
  T mean, rstd;
};

// y = (x - mean) rstd * w + b; b may be null.
template <class T>
NormRow<T> normalize(T* y, const T* x, const T* w, const T* b, std::int64_t width, float eps) {
  const Moments<T> m = moments(x, width);
  const T mean = m.mean, rstd = 1 / std::sqrt(m.variance + T(eps));
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> n = (load_part(x + c, count) - mean) * rstd;
    const Vec<T> shift = b ? load_part(b + c, count) : Vec<T>{};
    store_part(y + c, n * load_part(w + c, count) + shift, count);
  });
  return {mean, rstd};
}

// dw += dy n, db += dy, with n = (x - mean) rstd.
template <class T>
void add_parameter_gradients(T* dw, T* db, const T* dy, const T* x, NormRow<T> row, std::int64_t width) {
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    const Vec<T> d = load_part(dy + c, count), n = (load_part(x + c, count) - row.mean) * row.rstd;
    store_part(dw + c, load_part(dw + c, count) + d * n, count);
    store_part(db + c, load_part(db + c, count) + d, count);
  });
}

// With n = (x - mean) rstd and dn = dy w:  dx = rstd (dn - mean(dn) - n mean(dn n)).
template <class T>
class NormGradient {
 public:
  NormGradient(const T* dy, const T* x, const T* w, NormRow<T> row, std::int64_t width)
      : dy_(dy), x_(x), w_(w), row_(row) {
    Vec<T> sum{}, product{};
    for_vectors<T>(width, [&](std::int64_t c, int count) {
      const Vec<T> dn = load_part(dy + c, count) * load_part(w + c, count);
      sum += dn;
      product += dn * ((load_part(x + c, count) - row.mean) * row.rstd);
    });
    a_ = sum_of<T>(sum) / T(width);
    b_ = sum_of<T>(product) / T(width);
  }
  // to + dx, of the elements from c on: always as a sum, for one rounding whatever is added to.
  Vec<T> added_to(Vec<T> to, std::int64_t c, int count) const {
    const Vec<T> dn = load_part(dy_ + c, count) * load_part(w_ + c, count);
    const Vec<T> n = (load_part(x_ + c, count) - row_.mean) * row_.rstd;
    return to + row_.rstd * (dn - a_ - n * b_);
  }

 private:
  const T *dy_, *x_, *w_;
  NormRow<T> row_;
  T a_, b_;
};

}  // namespace grt::cpu
