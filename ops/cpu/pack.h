// Packing for ops/cpu/gemm.cpp: panels of a matrix copied to the order in which the innermost loop reads them, in one
// of the formats of format.h. A panel holds W "lanes" (rows of A or columns of B) k-major: element (lane, step) at
// step * W + lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/cpu/format.h"
#include "ops/cpu/host/scratch.h"

namespace grt::cpu {

// a0 b0 a1 b1 ...: the first (Half = 0) or second (Half = 1) halves of a and b interleaved.
template <int Half, class V, std::size_t... I>
inline V interleave(V a, V b, std::index_sequence<I...>) {
  constexpr int kSize = sizeof...(I);
  return __builtin_shufflevector(a, b, (static_cast<int>(I) % 2 * kSize + (Half * kSize + static_cast<int>(I)) / 2)...);
}

// Transposes R vectors of C elements: read one after the other they are then C vectors of R. log2(R) rounds of a
// perfect shuffle, each of which rotates the bits of an element's place by one.
template <class T, int R, int C>
inline void transpose(ShortVec<T, C> (&r)[R]) {
  constexpr auto kIndices = std::make_index_sequence<C>{};
#pragma GCC unroll 8
  for (int round = 1; round < R; round *= 2) {
    ShortVec<T, C> t[R];
#pragma GCC unroll 16
    for (int i = 0; i < R / 2; ++i) {
      t[2 * i] = interleave<0>(r[i], r[i + R / 2], kIndices);
      t[2 * i + 1] = interleave<1>(r[i], r[i + R / 2], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) r[i] = t[i];
  }
}

// S elements from values that follow each other in k.
template <class F, int S>
inline ShortVec<Element<F>, S> elements_along(const Real<F>* src) {
  ShortVec<Real<F>, S> values[Format<F>::kDepth];
  std::memcpy(values, src, sizeof values);
  if constexpr (Format<F>::kDepth == 1) {
    return values[0];
  } else {
    return narrow<S>(values[0], values[1]);
  }
}

// One element, of the first `count` <= Format<F>::kDepth steps in k.
template <class F>
inline Element<F> element(const Real<F>* src, std::int64_t k_stride, std::int64_t count) {
  if constexpr (Format<F>::kDepth == 1) {
    return *src;
  } else {
    return bf16_pair(*src, count > 1 ? src[k_stride] : 0.0f);
  }
}

// `steps` >= S elements in depth of R of a panel's W lanes, S of each at a time.
template <class F, int W, int R, int S>
void pack_lanes(const Real<F>* const (&lanes)[R], std::int64_t steps, Element<F>* dst) {
  static_assert(R == W || R == S);
  constexpr int kNext = R == W ? S : W;  // from a transposed vector's place to that of the next
  for (std::int64_t next = 0; next < steps; next += S) {
    const std::int64_t step = std::min(next, steps - S);  // the last block may overlap the one before
    ShortVec<Element<F>, S> r[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) r[i] = elements_along<F, S>(lanes[i] + step * Format<F>::kDepth);
    transpose<Element<F>, R, S>(r);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) std::memcpy(dst + step * W + i * kNext, &r[i], sizeof r[i]);
  }
}

// Lanes whose elements lie k after k; those from n on repeat lane n - 1.
template <class F, int W>
void pack_transposed(const Real<F>* src, std::int64_t lane_stride, int n, std::int64_t depth, Element<F>* dst) {
  constexpr int kLong = kLanes<Element<F>>, kSide = std::min(W, kLong);
  static_assert(W % kSide == 0);
  const auto lane_at = [&](int lane) { return src + std::min(lane, n - 1) * lane_stride; };
  const std::int64_t full = depth / Format<F>::kDepth, whole = full < kSide ? 0 : full;
  for (std::int64_t step = whole; step < elements<F>(depth); ++step)
    for (int lane = 0; lane < W; ++lane)
      dst[step * W + lane] = element<F>(lane_at(lane) + step * Format<F>::kDepth, 1, depth - step * Format<F>::kDepth);
  if (whole == 0) return;
  for (int lane = 0; lane < W; lane += kSide) {
    const Real<F>* lanes[kSide];
    for (int i = 0; i < kSide; ++i) lanes[i] = lane_at(lane + i);
    if (whole < kLong)
      pack_lanes<F, W, kSide, kSide>(lanes, whole, dst + lane);
    else
      pack_lanes<F, W, kSide, kLong>(lanes, whole, dst + lane);
  }
}

// The first (Half = 0) or second half of the elements of v, each followed by its partner of the other half.
template <class V, std::size_t... I>
inline V pair_halves(V v, std::index_sequence<I...>) {
  constexpr int kHalf = sizeof...(I) / 2;
  return __builtin_shufflevector(v, v, (static_cast<int>(I) % 2 * kHalf + static_cast<int>(I) / 2)...);
}

// S elements of lanes that lie side by side, of the first `count` <= Format<F>::kDepth steps in k.
template <class F, int S>
inline ShortVec<Element<F>, S> elements_across(const Real<F>* src, std::int64_t k_stride, std::int64_t count) {
  ShortVec<Real<F>, S> first, second{};
  std::memcpy(&first, src, sizeof first);
  if constexpr (Format<F>::kDepth == 1) {
    return first;
  } else {
    if (count > 1) std::memcpy(&second, src + k_stride, sizeof second);
    using Halves = ShortVec<std::uint16_t, 2 * S>;
    const auto halves = std::bit_cast<Halves>(narrow<S>(first, second));
    return std::bit_cast<ShortVec<std::uint32_t, S>>(pair_halves(halves, std::make_index_sequence<2 * S>{}));
  }
}

// Lanes that lie side by side; those from n on are zero.
template <class F, int W>
void pack_straight(const Real<F>* src, std::int64_t k_stride, int n, std::int64_t depth, Element<F>* dst) {
  constexpr int kSide = std::min(W, kLanes<Element<F>>);
  for (std::int64_t k = 0; k < depth; k += Format<F>::kDepth, src += Format<F>::kDepth * k_stride, dst += W) {
    if (n == W) {
#pragma GCC unroll 4
      for (int lane = 0; lane < W; lane += kSide) {
        const auto e = elements_across<F, kSide>(src + lane, k_stride, depth - k);
        std::memcpy(dst + lane, &e, sizeof e);
      }
    } else {
      for (int lane = 0; lane < W; ++lane)
        dst[lane] = lane < n ? element<F>(src + lane, k_stride, depth - k) : Element<F>(0);
    }
  }
}

// Turns an exact panel of W lanes into a rounded one.
template <int W>
void round_panel(std::int64_t depth, float* panel) {
  for_vectors<float>(depth * W, [&](std::int64_t i, int count) {
    store_part(panel + i, rounded(load_part(panel + i, count)), count);
  });
  for (std::int64_t k = 0; k + 1 < depth; k += 2, panel += 2 * W) std::swap_ranges(panel, panel + W, panel + W);
}

// A panel of n <= W lanes. One of the two strides is 1.
template <class F, int W>
void pack(const Real<F>* src, std::int64_t lane_stride, std::int64_t k_stride, int n, std::int64_t depth,
          Element<F>* dst) {
  if (lane_stride == 1) {
    pack_straight<F, W>(src, k_stride, n, depth, dst);
  } else {
    pack_transposed<F, W>(src, lane_stride, n, depth, dst);
  }
  if constexpr (Format<F>::kSwapped) round_panel<W>(depth, dst);
}

// The first (Half = 0) or second halves of a and b, one after the other.
template <int Half, class V, std::size_t... I>
inline V join_halves(V a, V b, std::index_sequence<I...>) {
  constexpr int kSize = sizeof...(I), kHalf = kSize / 2;
  return __builtin_shufflevector(a, b,
                                 (static_cast<int>(I) / kHalf * kSize + Half * kHalf + static_cast<int>(I) % kHalf)...);
}

// The elements [step, end) in depth of lanes that lie side by side: a vector of them, for one panel of W lanes or for
// two, `size` elements apart. Two steps of half a vector are written as one vector.
template <class F, int W>
void pack_steps(const Real<F>* src, std::int64_t k_stride, std::int64_t depth, std::int64_t step, std::int64_t end,
                Element<F>* dst, std::int64_t size) {
  constexpr int kSide = std::max(W, kLanes<Element<F>>);
  static_assert(kSide == W || kSide == 2 * W);
  const auto across = [&](std::int64_t at) {
    const std::int64_t k = at * Format<F>::kDepth;
    return elements_across<F, kSide>(src + k * k_stride, k_stride, depth - k);
  };
  if constexpr (kSide == 2 * W)
    for (; step + 1 < end; step += 2) {
      const auto first = across(step), second = across(step + 1);
      const auto low = join_halves<0>(first, second, std::make_index_sequence<kSide>{});
      const auto high = join_halves<1>(first, second, std::make_index_sequence<kSide>{});
      std::memcpy(dst + step * W, &low, sizeof low);
      std::memcpy(dst + size + step * W, &high, sizeof high);
    }
  for (; step < end; ++step) {
    const auto e = across(step);
    for (int lane = 0; lane < kSide; lane += W)
      std::memcpy(dst + lane / W * size + step * W, reinterpret_cast<const char*>(&e) + lane * sizeof e[0],
                  W * sizeof e[0]);
  }
}

// Rows of A whose elements lie side by side, as panels of W rows: all at once, since their rows share cache lines.
// Packs as many as fill whole vectors, and returns that number.
template <class F, int W>
std::int64_t pack_side_by_side(const Real<F>* src, std::int64_t k_stride, std::int64_t rows, std::int64_t depth,
                               Element<F>* dst) {
  constexpr int kSide = std::max(W, kLanes<Element<F>>);
  constexpr std::int64_t kRun = 8 / Format<F>::kDepth;  // lines that L1 keeps even when all fall into one of its sets
  const std::int64_t whole = rows / kSide * kSide, steps = elements<F>(depth);
  for (std::int64_t step = 0; step < steps; step += kRun)
    for (std::int64_t i = 0; i < whole; i += kSide)
      pack_steps<F, W>(src + i, k_stride, depth, step, std::min(step + kRun, steps), dst + i * steps, W * steps);
  if constexpr (Format<F>::kSwapped)
    for (std::int64_t i = 0; i < whole; i += W) round_panel<W>(depth, dst + i * steps);
  return whole;
}

}  // namespace grt::cpu
