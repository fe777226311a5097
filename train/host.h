// A tensor's values where the host can read them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

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

// The values of an i32 tensor.
inline std::vector<std::int32_t> host_ids(const Tensor& t) { return on_host<std::int32_t>(t); }

}  // namespace grt
