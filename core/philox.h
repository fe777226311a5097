// Philox4x32-10: random numbers as a pure function of (seed, step, site, index).
// Nothing is stored or advanced, so a recomputed activation sees the same noise, on any device.
// What is constexpr can be called from device kernels too.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/scalar.h"

namespace grt {

// Names one stream of random numbers: which run, which forward pass, which place in it.
struct NoiseKey {
  Scalar<std::uint64_t> seed = 0;
  std::uint32_t pass = 0;
  std::uint32_t site = 0;
};

// The site of what has a name: FNV-1a, 32 bits. Source: http://www.isthe.com/chongo/tech/comp/fnv/
constexpr std::uint32_t site_of(std::string_view name) {
  std::uint32_t h = 2166136261u;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return h;
}

constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> c) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The index-th block of four words under `key`.
constexpr std::array<std::uint32_t, 4> random_block(const NoiseKey& key, std::uint64_t index) {
  return philox(key.seed.get(),
                {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), key.site, key.pass});
}

constexpr std::uint64_t random_u64(const NoiseKey& key, std::uint64_t index) {
  const auto r = random_block(key, index);
  return std::uint64_t{r[1]} << 32 | r[0];
}

// Uniform in [0, n): the high word of a 64 x 64 bit product, whose bias is below n / 2^64.
constexpr std::uint64_t random_below(const NoiseKey& key, std::uint64_t index, std::uint64_t n) {
  const std::uint64_t x = random_u64(key, index);
  const std::uint64_t x0 = x & 0xffffffffu, x1 = x >> 32, n0 = n & 0xffffffffu, n1 = n >> 32;
  const std::uint64_t mid = x1 * n0 + (x0 * n0 >> 32), low = x0 * n1 + (mid & 0xffffffffu);
  return x1 * n1 + (mid >> 32) + (low >> 32);
}

// Uniform in [0, 1), 53 bits.
constexpr double random_unit(const NoiseKey& key, std::uint64_t index) {
  return static_cast<double>(random_u64(key, index) >> 11) * 0x1p-53;
}

// The i-th standard normal under `key`: Box-Muller gives two of them to each half of a Philox block.
inline float random_normal(const NoiseKey& key, std::uint64_t i) {
  const auto r = random_block(key, i >> 2);
  const std::uint32_t a = i & 2 ? r[2] : r[0], b = i & 2 ? r[3] : r[1];
  const float u = (static_cast<float>(a >> 8) + 0.5f) * 0x1p-24f;  // (0, 1]
  const float v = static_cast<float>(b >> 8) * 0x1p-24f;           // [0, 1)
  const float radius = std::sqrt(-2.0f * std::log(u)), angle = 6.28318530718f * v;
  return radius * ((i & 1) ? std::sin(angle) : std::cos(angle));
}

// A standard normal cut at +-kNormalCut, for the element (row, column): a draw beyond is dropped for the next one of
// the element's own. row < 2^32, column < 2^24.
inline constexpr float kNormalCut = 3;
inline float random_truncated_normal(const NoiseKey& key, std::uint64_t row, std::uint64_t column) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const float x = random_normal(key, row << 32 | attempt << 24 | column);
    if (std::abs(x) <= kNormalCut) return x;
  }
}

}  // namespace grt
