// Portable vectors: GCC's vector extension at the width of this level's registers. Arithmetic is written with + - * /
// and comparisons on Vec<T>; a multiply-add is fused by the compiler. For ops/cpu/ alone: everything in here belongs to
// the instruction set that it is compiled for (isa.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/isa.h"

namespace grt::cpu {

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// A vector of exactly W elements.
template <class T, int W>
struct ShortVecOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T, int W>
using ShortVec = typename ShortVecOf<T, W>::type;

template <class T>
inline Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}
template <class T>
inline Vec<T> broadcast(T x) {
  return Vec<T>{} + x;
}

// The first n <= kLanes elements; the others are `rest`.
template <class T>
inline Vec<T> load_part(const T* p, int n, T rest = 0) {
  Vec<T> v = broadcast(rest);
  std::memcpy(&v, p, n * sizeof(T));
  return v;
}
template <class T>
inline void store_part(T* p, Vec<T> v, int n) {
  std::memcpy(p, &v, n * sizeof(T));
}

template <class T>
inline Vec<T> max(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

// The sum (the largest) of the elements, by halving: one fixed order.
template <class T>
inline T sum_of(Vec<T> v) {
  T e[kLanes<T>];
  store(e, v);
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) e[i] += e[i + half];
  return e[0];
}
template <class T>
inline T largest_of(Vec<T> v) {
  T e[kLanes<T>];
  store(e, v);
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) e[i] = e[i] > e[i + half] ? e[i] : e[i + half];
  return e[0];
}

// Calls f(i, count) for each vector of [0, n): count is kLanes, in a shorter last one less. Inlined, it is a constant
// in the full vectors, where load_part and store_part then cost what load and store do.
template <class T, class F>
inline void for_vectors(std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) f(i, kLanes<T>);
  if (i < n) f(i, static_cast<int>(n - i));
}

}  // namespace grt::cpu
