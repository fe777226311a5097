// How panels hold the elements of a product's factors, and the multiply-add of such elements.
//
// float, double: as they are. bf16: rounded to the upper 16 bits of an f32, products and sums in f32. Bf16Pairs lets
// the CPU's instruction multiply two neighbours in k at a time; it adds the product of the second first, then that of
// the first, each in one rounding. Rounded keeps bf16 values as f32 and takes each pair in that order, so that it gives
// the same bits: the product of two bf16 values is exact in f32. (Only sums below 2^-126 differ: the instruction takes
// subnormal numbers for zero.) Source: Intel SDM, VDPBF16PS.
#pragma once

#include <bit>
#include <type_traits>

#include "ops/cpu/simd.h"

namespace grt::cpu {

struct Rounded {};
struct Bf16Pairs {};
using Bf16 = std::conditional_t<kIsa == Isa::avx512bf16, Bf16Pairs, Rounded>;

template <class F>
struct Format {                            // of float and double
  using Real = F;                          // of the product
  using Element = F;                       // in a panel
  static constexpr int kDepth = 1;         // steps in k of an element
  static constexpr bool kSwapped = false;  // do steps 2j and 2j + 1 in k change places?
  static Vec<F> multiply_add(Vec<F> sum, Vec<F> b, F a) { return sum + b * a; }
};

template <>
struct Format<Rounded> : Format<float> {
  static constexpr bool kSwapped = true;
};

template <>
struct Format<Bf16Pairs> {
  using Real = float;
  using Element = std::uint32_t;  // of steps 2j (low half) and 2j + 1
  static constexpr int kDepth = 2;
  static constexpr bool kSwapped = false;
  template <class Sum>
  static Sum multiply_add(Sum sum, Vec<Element> b, Element a) {
    const Vec<Element> all = broadcast(a);
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(all));
    return sum;
  }
};

template <class F>
using Real = typename Format<F>::Real;
template <class F>
using Element = typename Format<F>::Element;

// Elements of a panel that is `depth` steps deep.
template <class F>
constexpr std::int64_t elements(std::int64_t depth) {
  return (depth + Format<F>::kDepth - 1) / Format<F>::kDepth;
}

// To the nearest bf16, ties to even; NaNs stay NaNs, subnormal numbers become zero.
inline Vec<float> rounded(Vec<float> x) {
  const auto bits = std::bit_cast<Vec<std::uint32_t>>(x);
  const auto nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  const auto normal = (bits & 0x7f800000u) != 0u;
  return std::bit_cast<Vec<float>>(x == x ? (normal ? nearest : bits & 0x80000000u) : bits | 0x00400000u);
}
inline std::uint32_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return (bits | 0x00400000u) >> 16;
  if ((bits & 0x7f800000u) == 0) return (bits & 0x80000000u) >> 16;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline std::uint32_t bf16_pair(float first, float second) { return bf16_bits(first) | bf16_bits(second) << 16; }

// The 2 S values of `low` and then `high`, which follow each other in k, as S pairs.
template <int S>
inline ShortVec<std::uint32_t, S> narrow(ShortVec<float, S> low, ShortVec<float, S> high) {
  ShortVec<std::uint32_t, S> pairs;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(pairs) : "v"(low), "v"(high));
  return pairs;
}

}  // namespace grt::cpu
