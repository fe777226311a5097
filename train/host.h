// A tensor's values where the host can read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/kernels.h"

namespace grt {

// The elements of a tensor, whose type must be T's; waits for the device.
template <class T>
std::vector<T> on_host(const Tensor& t) {
  std::vector<T> values(static_cast<std::size_t>(t.numel()));
  t.device().copy(values.data(), t.raw(), t.bytes());
  t.device().sync();
  return values;
}

// The values of an f32 or f64 tensor as doubles.
inline std::vector<double> host_values(const Tensor& t) {
  return visit_real(t.dtype(), [&]<class T>() {
    const std::vector<T> values = on_host<T>(t);
    return std::vector<double>(values.begin(), values.end());
  });
}

// The first `columns` of each row of an f32 or f64 tensor, row after row.
inline std::vector<double> host_columns(const Tensor& t, std::int64_t columns) {
  return visit_real(t.dtype(), [&]<class T>() {
    const std::vector<T> values = on_host<T>(t);
    std::vector<double> kept;
    kept.reserve(static_cast<std::size_t>(t.shape().rows() * columns));
    for (auto row = values.begin(); row != values.end(); row += t.shape().last())
      kept.insert(kept.end(), row, row + columns);
    return kept;
  });
}

// The sum of the squares of a tensor's elements, in f64.
inline double sum_squares(const Tensor& x) {
  const Tensor y = Tensor::empty({1}, DType::f64, x.device());
  x.device().kernels().sum_squares(y, x);
  return on_host<double>(y)[0];
}

// The least element of an f32 or f64 tensor, which must have one.
inline double least(const Tensor& t) {
  return visit_real(t.dtype(), [&]<class T>() {
    const std::vector<T> values = on_host<T>(t);
    return static_cast<double>(*std::min_element(values.begin(), values.end()));
  });
}

// "NAME (2, 3) (1 of 6 values are NaN or infinite)"; empty if all are finite. Counted on the tensor's device.
inline std::string describe_bad(const std::string& name, const Tensor& t) {
  const std::int64_t bad = t.device().kernels().count_not_finite(t);
  return bad == 0 ? "" : fmt::format("{} {} ({} of {} values are NaN or infinite)", name, t.shape(), bad, t.numel());
}

// The values of an i32 tensor.
inline std::vector<std::int32_t> host_ids(const Tensor& t) { return on_host<std::int32_t>(t); }

}  // namespace grt
