#include "ops/cpu/peak.h"

#include <immintrin.h>

#include "core/threads.h"
#include "ops/cpu/simd.h"

namespace grt::cpu {
namespace {

// Enough independent sums to fill the pipelines (latency times throughput), few enough for 16 registers.
constexpr int kSums = 12;
constexpr std::int64_t kRounds = 1 << 19;

// The sums approach 1, so no value grows, vanishes or becomes subnormal.
float multiply_adds(std::int64_t rounds) {
  Vec<float> sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = broadcast(0.5f + 0.01f * static_cast<float>(k));
  const Vec<float> factor = broadcast(0.999f), term = broadcast(0.001f);
  for (std::int64_t i = 0; i < rounds; ++i)
    for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * factor + term;
  Vec<float> total{};
  for (const Vec<float>& s : sums) total += s;
  return sum_of<float>(total);
}

__attribute__((target("avx512f,avx512bf16"))) float bf16_multiply_adds(std::int64_t rounds) {
  __m512 sums[kSums] = {};
  const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], ones, ones);
  for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
  return sums[0][0];
}

float sum_of_range(const float* x, std::int64_t n) {
  constexpr int kChains = 8;
  Vec<float> sums[kChains] = {};
  const std::int64_t step = kChains * kLanes<float>;
  for (std::int64_t i = 0; i + step <= n; i += step)
    for (int k = 0; k < kChains; ++k) sums[k] += load(x + i + k * kLanes<float>);
  Vec<float> total{};
  for (const Vec<float>& s : sums) total += s;
  return sum_of<float>(total);
}

// Uses a result, so that what led to it is not optimized away.
void keep(float x) {
  volatile float sink = x;
  static_cast<void>(sink);
}

}  // namespace

double run_multiply_adds() {
  const std::int64_t chunks = 4 * thread_count();
  parallel_for(chunks, 1, [&](std::int64_t, std::int64_t) { keep(multiply_adds(kRounds)); });
  return 2.0 * kSums * kLanes<float> * static_cast<double>(kRounds) * static_cast<double>(chunks);
}

double run_bf16_multiply_adds() {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  const std::int64_t chunks = 4 * thread_count();
  parallel_for(chunks, 1, [&](std::int64_t, std::int64_t) { keep(bf16_multiply_adds(kRounds)); });
  constexpr int kPairs = 16;  // of a vector of 64 bytes
  return 4.0 * kSums * kPairs * static_cast<double>(kRounds) * static_cast<double>(chunks);
}

double run_reads(const Tensor& x) {
  constexpr std::int64_t kChunk = 1 << 20;  // 4 MiB: one sequential stream at a time for each thread
  parallel_for(x.numel(), kChunk,
               [&](std::int64_t begin, std::int64_t end) { keep(sum_of_range(x.data<float>() + begin, end - begin)); });
  return static_cast<double>(x.bytes());
}

}  // namespace grt::cpu
