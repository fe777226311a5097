#include "ops/cpu/rates.h"

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/format.h"

namespace grt::cpu {
namespace {

// Enough independent sums to fill the pipelines (latency times throughput), few enough for 16 registers.
constexpr int kSums = 12;

// The sums approach 1, so no value grows, vanishes or becomes subnormal.
float exact_multiply_adds(std::int64_t rounds) {
  Vec<float> sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = broadcast(0.5f + 0.01f * static_cast<float>(k));
  const Vec<float> factor = broadcast(0.999f), term = broadcast(0.001f);
  for (std::int64_t i = 0; i < rounds; ++i)
    for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * factor + term;
  Vec<float> total{};
  for (const Vec<float>& s : sums) total += s;
  return sum_of<float>(total);
}

float bf16_multiply_adds(std::int64_t rounds) {
  Vec<float> sums[kSums] = {};
  const auto factor = broadcast(static_cast<Element<Bf16>>(0x3e803e80u));  // of pairs: 0.25, 0.25
  for (std::int64_t i = 0; i < rounds; ++i)
    for (int k = 0; k < kSums; ++k) sums[k] = Format<Bf16>::multiply_add(sums[k], factor, factor[0]);
  Vec<float> total{};
  for (const Vec<float>& s : sums) total += s;
  return sum_of<float>(total);
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

double multiply_adds(DType type) {
  constexpr std::int64_t kRounds = 1 << 19;
  const bool bf16 = type == DType::bf16;
  const std::int64_t chunks = 4 * thread_count(), depth = bf16 ? Format<Bf16>::kDepth : 1;
  parallel_for(chunks, 1, [&](std::int64_t, std::int64_t) {
    keep(bf16 ? bf16_multiply_adds(kRounds) : exact_multiply_adds(kRounds));
  });
  return 2.0 * kSums * kLanes<float> * static_cast<double>(depth * kRounds * chunks);
}

double reads(const Tensor& x) {
  constexpr std::int64_t kChunk = 1 << 20;  // 4 MiB: one sequential stream at a time for each thread
  parallel_for(x.numel(), kChunk,
               [&](std::int64_t begin, std::int64_t end) { keep(sum_of_range(x.data<float>() + begin, end - begin)); });
  return static_cast<double>(x.bytes());
}

}  // namespace grt::cpu
