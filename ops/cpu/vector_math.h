// Elementary functions on vectors (simd.h). In f32 they are our own polynomials, fitted to the least largest relative
// error; each states the relative error it keeps to, which tests/ops/vector_math_test.cpp measures. In f64, which
// serves gradient checks and references, they are the standard library's, element by element.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/simd.h"

namespace grt::cpu {

using Words = Vec<std::uint32_t>;

template <class T, class F>
inline Vec<T> each_element(Vec<T> x, F&& f) {
  for (int i = 0; i < kLanes<T>; ++i) x[i] = f(x[i]);
  return x;
}

// The polynomial c[0] + c[1] x + ..., by Horner's rule.
template <int n>
inline Vec<float> polynomial(Vec<float> x, const float (&c)[n]) {
  Vec<float> p = broadcast(c[n - 1]);
  for (int k = n - 2; k >= 0; --k) p = p * x + c[k];
  return p;
}

// e^x, within 2e-7; 0 below -87.33 (no subnormal numbers), infinite above 88.72, NaN of NaN.
// With n = round(x / ln 2) and r = x - n ln 2:  e^x = 2^n e^r,  and e^r = 1 + r + r^2 P(r) for |r| <= ln(2) / 2.
inline Vec<float> exp(Vec<float> x) {
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, whose low bits then end the significand
  const Vec<float> shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const Vec<float> r = (x - n * 0x1.63p-1f) + n * 2.12194440e-4f;  // ln 2 in two parts; the first product is exact
  const Vec<float> p = polynomial(r, {0.499999934f, 0.166665205f, 0.0416683899f, 0.00836873577f, 0.00138145579f});
  const Vec<float> e = (r * r) * p + r + 1.0f;
  const Vec<float> scaled = std::bit_cast<Vec<float>>(std::bit_cast<Words>(e) + (std::bit_cast<Words>(shifted) << 23));
  const Vec<float> low = x < -87.3365f ? Vec<float>{} : scaled;
  return x <= 88.7228f ? low : x + std::numeric_limits<float>::infinity();  // of a NaN, whose `low` is any number, NaN
}
inline Vec<double> exp(Vec<double> x) {
  return each_element<double>(x, [](double a) { return std::exp(a); });
}

// ln x of a positive normal x, within 2e-7.
// With x = 2^n m, m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1):  ln x = n ln 2 + 2 artanh(s).
inline Vec<float> log(Vec<float> x) {
  constexpr std::uint32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
  const Words offset = std::bit_cast<Words>(x) - kRootHalf;
  const Vec<float> n = __builtin_convertvector(std::bit_cast<Vec<std::int32_t>>(offset) >> 23, Vec<float>);
  const Vec<float> m = std::bit_cast<Vec<float>>((offset & 0x007fffffu) + kRootHalf);
  const Vec<float> s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  const Vec<float> tail = s * s2 * polynomial(s2, {0.666667764f, 0.399775417f, 0.298717244f});
  return n * 0x1.63p-1f + (n * -2.12194440e-4f + (tail + 2.0f * s));
}

inline Vec<float> sqrt(Vec<float> x) {
  return each_element<float>(x, [](float a) { return std::sqrt(a); });
}

// sin and cos of x in [0, 2 pi], within 2e-7 of 1.
struct SinCos {
  Vec<float> sin, cos;
};
inline SinCos sin_cos(Vec<float> x) {
  constexpr float kRound = 0x1.8p23f;
  const Vec<float> shifted = x * 0.636619772f + kRound, n = shifted - kRound;  // quarter turns
  const Words quarter = std::bit_cast<Words>(shifted);
  const Vec<float> r = ((x - n * 0x1.92p0f) - n * 0x1.fbp-12f) - n * 3.1391648e-7f;  // pi / 2 in three parts
  const Vec<float> r2 = r * r;
  const Vec<float> s = r * r2 * polynomial(r2, {-0.166666549f, 0.00833217815f, -0.000195172997f}) + r;
  const Vec<float> c = r2 * r2 * polynomial(r2, {0.0416666457f, -0.00138873162f, 2.44331562e-05f}) - 0.5f * r2 + 1.0f;
  const auto swap = (quarter & 1u) != 0u;
  const Words sin_sign = (quarter & 2u) << 30, cos_sign = ((quarter + 1u) & 2u) << 30;
  return {std::bit_cast<Vec<float>>(std::bit_cast<Words>(swap ? c : s) ^ sin_sign),
          std::bit_cast<Vec<float>>(std::bit_cast<Words>(swap ? s : c) ^ cos_sign)};
}

// sigmoid(x) and 1 - sigmoid(x) = sigmoid(-x), each within 4e-7 however small it is: nothing is subtracted.
template <class V>
struct SigmoidPair {
  V value, rest;
};
template <class T>
inline SigmoidPair<Vec<T>> sigmoid(Vec<T> x) {
  const auto negative = x < T(0);
  const Vec<T> e = exp(negative ? x : -x);  // at most 1
  const Vec<T> large = T(1) / (T(1) + e), small = e * large;
  return {negative ? small : large, negative ? large : small};
}

// The normal density and its integral Phi up to x, that within 4e-7 |1 + x^2 / 2| of itself, in the left tail too.
// With z = |x| / sqrt(2), t = 1 / (1 + 0.4 z):  erfc(z) = exp(-z^2) P(t), and Phi(-|x|) = erfc(z) / 2.
template <class V>
struct Normal {
  V density, integral;
};
inline Normal<Vec<float>> normal(Vec<float> x) {
  const Vec<float> z = (x < 0.0f ? -x : x) * 0.707106781f;
  const Vec<float> e = exp(-0.5f * x * x), t = 1.0f / (1.0f + 0.4f * z);
  const Vec<float> tail = 0.5f * e * t *
                          polynomial(t, {0.225626301f, 0.226575657f, 0.200958972f, 0.196961474f, 0.0715120223f,
                                         0.0997241145f, 0.0738469919f, -0.135473466f, 0.0402679906f});
  return {0.398942280f * e, x < 0.0f ? tail : 1.0f - tail};
}
inline Normal<Vec<double>> normal(Vec<double> x) {
  return {0.39894228040143267794 * exp(-0.5 * x * x),
          each_element<double>(x, [](double a) { return 0.5 * std::erfc(-0.70710678118654752440 * a); })};
}

}  // namespace grt::cpu
