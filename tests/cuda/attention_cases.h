// Attention at some shapes, for the tests of its bits and of a library that computes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/kernels.h"
#include "tests/support.h"

namespace grt::test {

using Values = std::vector<double>;

inline Tensor on(Device& device, const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  device.copy(y.raw(), x.raw(), x.bytes());
  return y;
}
inline Tensor random_on(Device& device, Shape shape, std::uint32_t site) {
  return on(device, randn(shape, site, DType::f32));
}

struct Heads {
  std::int64_t batch, time;
  int heads;
  std::int64_t width;
  Shape out() const { return {batch, time, heads * width}; }
  Shape qkv() const { return {batch, time, 3 * heads * width}; }
  Shape lse() const { return {batch, heads, time}; }
};

// out, lse and the gradient, which is added to what the qkv were.
inline std::vector<Values> attend(Device& device, const Heads& h) {
  const Tensor qkv = random_on(device, h.qkv(), 1), dout = random_on(device, h.out(), 2), dqkv = qkv.clone(),
               out = Tensor::empty(h.out(), DType::f32, device), lse = Tensor::empty(h.lse(), DType::f32, device);
  device.kernels().attention(out, lse, qkv, h.heads);
  device.kernels().attention_backward({dqkv, true}, dout, qkv, out, lse, h.heads);
  return {grt::test::values(out), grt::test::values(lse), grt::test::values(dqkv)};
}

// The tokens from `past` on, over a cache with room for one more.
inline Values attend_cached(Device& device, const Heads& h, std::int64_t past) {
  const Shape cache{h.batch, h.heads, h.time + 1, h.width}, all{h.batch, h.time, h.out().last()};
  const std::int64_t fresh = h.time - past, row = h.qkv().last();
  const Tensor qkv = random_on(device, h.qkv(), 1), keys = Tensor::zeros(cache, DType::f32, device),
               values = Tensor::zeros(cache, DType::f32, device), out = Tensor::empty(all, DType::f32, device);
  const auto run = [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t b = 0; n > 0 && b < h.batch; ++b) {
      const Shape one{1, h.heads, h.time + 1, h.width};
      device.kernels().attention_cached(out.range((b * h.time + begin) * all.last(), {1, n, all.last()}),
                                        keys.range(b * one.numel(), one), values.range(b * one.numel(), one),
                                        qkv.range((b * h.time + begin) * row, {1, n, row}), begin, h.heads);
    }
  };
  run(0, past);
  run(past, fresh);
  return grt::test::values(out);
}

// The largest distance of two rows relative to the expected one's norm, or to the mean one if that is larger.
inline double row_error(const Values& got, const Values& expected, std::int64_t width) {
  REQUIRE(got.size() == expected.size());
  const auto columns = static_cast<std::size_t>(width);
  double all = 0, worst = 0;
  for (const double x : expected) all += x * x / static_cast<double>(expected.size() / columns);
  for (std::size_t begin = 0; begin < got.size(); begin += columns) {
    double distance = 0, norm = 0;
    for (std::size_t i = begin; i < begin + columns; ++i) {
      distance += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    worst = std::isnan(distance) ? HUGE_VAL : std::max(worst, std::sqrt(distance / std::max(norm, all)));
  }
  return worst;
}

// Odd lengths, on both sides of tiles of 32 and 64 rows; the last has no kernel for tensor cores.
inline const std::vector<Heads> kShapes = {
    {2, 71, 2, 64}, {1, 129, 3, 32}, {2, 37, 1, 128}, {1, 1, 2, 64}, {1, 35, 2, 40}};

}  // namespace grt::test
