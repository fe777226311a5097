// Packing for ops/cpu/gemm.cpp: panels of a matrix copied to the order in which the innermost loop reads them, and the
// memory they lie in. A panel holds W "lanes" (rows of A or columns of B) k-major: element (lane, k) at k * W + lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/cpu/simd.h"

namespace grt::cpu {

// Memory that grows when more is asked for and is otherwise reused; backed by huge pages where the system has them.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements, aligned to a page. What an earlier call returned is no longer valid.
  template <class T>
  T* get(std::int64_t count) {
    return static_cast<T*>(grown(static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  void* grown(std::size_t bytes);

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// A vector of exactly W elements.
template <class T, int W>
struct ShortVecOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T, int W>
using ShortVec = typename ShortVecOf<T, W>::type;

// a0 b0 a1 b1 ...: the first (Half = 0) or second (Half = 1) halves of a and b interleaved.
template <int Half, class V, std::size_t... I>
inline V interleave(V a, V b, std::index_sequence<I...>) {
  constexpr int kSize = sizeof...(I);
  return __builtin_shufflevector(a, b, (static_cast<int>(I) % 2 * kSize + (Half * kSize + static_cast<int>(I)) / 2)...);
}

// Transposes W vectors of W elements: log2(W) rounds of a perfect shuffle of the rows.
template <class T, int W>
inline void transpose(ShortVec<T, W> (&r)[W]) {
  constexpr auto kIndices = std::make_index_sequence<W>{};
#pragma GCC unroll 8
  for (int round = 1; round < W; round *= 2) {
    ShortVec<T, W> t[W];
#pragma GCC unroll 16
    for (int i = 0; i < W / 2; ++i) {
      t[2 * i] = interleave<0>(r[i], r[i + W / 2], kIndices);
      t[2 * i + 1] = interleave<1>(r[i], r[i + W / 2], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) r[i] = t[i];
  }
}

// dst[k * W + lane] = src[lane * lane_stride + k], lane < W, k < depth; lanes from n on repeat lane n - 1.
template <class T, int W>
void pack_transposed(const T* src, std::int64_t lane_stride, int n, std::int64_t depth, T* dst) {
  constexpr int kSide = std::min(W, kLanes<T>);
  static_assert(W % kSide == 0);
  if (depth < kSide) {
    for (std::int64_t k = 0; k < depth; ++k)
      for (int lane = 0; lane < W; ++lane) dst[k * W + lane] = src[std::min(lane, n - 1) * lane_stride + k];
    return;
  }
  for (int lane = 0; lane < W; lane += kSide) {
    const T* rows[kSide];
    for (int i = 0; i < kSide; ++i) rows[i] = src + std::min(lane + i, n - 1) * lane_stride;
    for (std::int64_t next = 0; next < depth; next += kSide) {
      const std::int64_t k = std::min(next, depth - kSide);  // the last block may overlap the one before
      ShortVec<T, kSide> r[kSide];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) std::memcpy(&r[i], rows[i] + k, sizeof r[i]);
      transpose<T, kSide>(r);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) std::memcpy(dst + (k + i) * W + lane, &r[i], sizeof r[i]);
    }
  }
}

// dst[k * W + lane] = src[lane + k * k_stride], lane < n, k < depth; lanes from n on are zero.
template <class T, int W>
void pack_straight(const T* src, std::int64_t k_stride, int n, std::int64_t depth, T* dst) {
  for (std::int64_t k = 0; k < depth; ++k, src += k_stride, dst += W) {
    if (n == W) {
      std::memcpy(dst, src, W * sizeof(T));
    } else {
      for (int lane = 0; lane < W; ++lane) dst[lane] = lane < n ? src[lane] : T(0);
    }
  }
}

// A panel of n <= W lanes. One of the two strides is 1.
template <class T, int W>
void pack(const T* src, std::int64_t lane_stride, std::int64_t k_stride, int n, std::int64_t depth, T* dst) {
  if (lane_stride == 1) {
    pack_straight<T, W>(src, k_stride, n, depth, dst);
  } else {
    pack_transposed<T, W>(src, lane_stride, n, depth, dst);
  }
}

}  // namespace grt::cpu
