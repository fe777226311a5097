// Standard normals in bulk: the values of core/philox.h's random_normal, up to float rounding, many at a time.
#pragma once

#include "core/philox.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {

struct WideProduct {
  Words low, high;
};
// The 64-bit products of unsigned 32-bit elements with m.
inline WideProduct multiply_wide(Words a, std::uint32_t m) {
  using Longs = Vec<std::uint64_t>;  // each holds an even element in its low half and the odd one above it
  constexpr std::uint64_t kLow = 0xffffffffu;
  const Longs pairs = std::bit_cast<Longs>(a), factor = broadcast<std::uint64_t>(m);
  const Longs even = (pairs & kLow) * factor, odd = (pairs >> 32) * factor;
  return {std::bit_cast<Words>((even & kLow) | (odd << 32)), std::bit_cast<Words>((even >> 32) | (odd & ~kLow))};
}

// How many normals one call of normals() gives: four to each Philox block.
inline constexpr int kNormals = 4 * kLanes<std::uint32_t>;

// out[j] = random_normal(key, first + j) for j < kNormals; first is a multiple of 4.
inline void normals(const NoiseKey& key, std::uint64_t first, float* out) {
  Words c0{}, c1{}, c2 = Words{} + key.site, c3 = Words{} + key.pass;
  for (int k = 0; k < kLanes<std::uint32_t>; ++k) {
    const std::uint64_t block = (first >> 2) + static_cast<std::uint64_t>(k);
    c0[k] = static_cast<std::uint32_t>(block);
    c1[k] = static_cast<std::uint32_t>(block >> 32);
  }
  const std::uint64_t seed = key.seed.get();
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto a = multiply_wide(c0, 0xD2511F53u), b = multiply_wide(c2, 0xCD9E8D57u);
    c0 = b.high ^ c1 ^ k0;
    c1 = b.low;
    c2 = a.high ^ c3 ^ k1;
    c3 = a.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const auto box_muller = [out](Words a, Words b, int at) {
    const auto to_float = [](Words w) {
      return __builtin_convertvector(std::bit_cast<Vec<std::int32_t>>(w >> 8), Vec<float>);
    };
    const Vec<float> u = (to_float(a) + 0.5f) * 0x1p-24f, angle = to_float(b) * 0x1p-24f * 6.28318530718f;
    const Vec<float> radius = sqrt(-2.0f * log(u));
    const SinCos turn = sin_cos(angle);
    const Vec<float> x = radius * turn.cos, y = radius * turn.sin;
    for (int k = 0; k < kLanes<float>; ++k) {
      out[4 * k + at] = x[k];
      out[4 * k + at + 1] = y[k];
    }
  };
  box_muller(c0, c1, 0);
  box_muller(c2, c3, 2);
}

}  // namespace grt::cpu
