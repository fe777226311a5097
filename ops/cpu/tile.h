// The register tile of ops/cpu/gemm.cpp: the innermost loop of a product, and how the columns of C are cut into tiles.
// Each element is one chain of multiply-adds in ascending k, begun at zero and then added to C: every shape of tile
// gives it the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ops/cpu/format.h"

namespace grt::cpu {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// kRows rows of C by kVectors vectors are held in registers. They, one row of B and one element of A must fit: there
// are 32 registers with AVX-512, 16 otherwise; without AVX a product needs one more.
inline constexpr int kRows = kWide ? 8 : 4;
inline constexpr int kVectors = kIsa == Isa::portable ? 2 : 3;

// Where a product goes: columns and rows of C, and what is added there first.
template <class T>
struct Output {
  T* c;
  std::int64_t ldc;
  bool add;
  const T* bias;

  Output at(std::int64_t row, std::int64_t column) const {
    return {c + row * ldc + column, ldc, add, bias ? bias + column : bias};
  }
  // For the pass that begins at k: all but the first add to what the first has begun.
  Output pass(std::int64_t k) const { return {c, ldc, add || k > 0, k == 0 ? bias : nullptr}; }
};

// Of the packed elements that tiles after this one read, those to fetch into L2 meanwhile: `step` more with each step.
template <class E>
struct Ahead {
  const E* next;
  std::int64_t step;
};

// `out` is a copy: what is stored in C cannot change it, so its fields are read once.
template <int R, int V, class T>
inline void write_tile(Vec<T> (&sum)[R][V], const Output<T> out) {
  constexpr int kLane = kLanes<T>;
  if (out.add) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] += load(out.c + i * out.ldc + v * kLane);
  }
  if (out.bias) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] += load(out.bias + v * kLane);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out.c + i * out.ldc + v * kLane, sum[i][v]);
}

// R rows by V vectors of C, `steps` panel elements deep. a: a packed panel of R rows; b: rows of V vectors, ldb
// elements apart.
template <class F, int R, int V, class T = Real<F>>
inline void multiply_tile(std::int64_t steps, const Element<F>* a, const Element<F>* b, std::int64_t ldb,
                          const Output<T>& out, Ahead<Element<F>> ahead) {
  constexpr int kLane = kLanes<T>;
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) __builtin_prefetch(out.c + i * out.ldc + v * kLane, 1);
  Vec<T> sum[R][V] = {};
  for (std::int64_t k = 0; k < steps; ++k, a += R, b += ldb, ahead.next += ahead.step) {
    __builtin_prefetch(ahead.next, 0, 2);
    Vec<Element<F>> row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      row[v] = load(b + v * kLane);
      __builtin_prefetch(b + 8 * ldb + v * kLane);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] = Format<F>::multiply_add(sum[i][v], row[v], a[i]);
  }
  write_tile<R, V>(sum, out);
}

// The part of a full tile that lies inside C, with the same additions in the same order.
template <class T>
void write_part(const T* tile, int width, int rows, int columns, const Output<T>& out) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      T& c = out.c[i * out.ldc + j];
      T sum = tile[i * width + j];
      if (out.add) sum += c;
      if (out.bias) sum += out.bias[j];
      c = sum;
    }
}

// Where nothing is named to be fetched, the rows of B are, which are on their way in any case.
template <class F, int R, int V, class T = Real<F>>
void multiply_part(std::int64_t steps, const Element<F>* a, const Element<F>* b, std::int64_t ldb, int rows,
                   int columns, const Output<T>& out, std::optional<Ahead<Element<F>>> named = {}) {
  constexpr int kWidth = V * kLanes<T>;
  const Ahead<Element<F>> ahead = named.value_or(Ahead<Element<F>>{b, ldb});
  if (rows == R && columns == kWidth) return multiply_tile<F, R, V>(steps, a, b, ldb, out, ahead);
  alignas(kVectorBytes) T tile[R * kWidth];
  multiply_tile<F, R, V>(steps, a, b, ldb, Output<T>{tile, kWidth, false, nullptr}, ahead);
  write_part(tile, kWidth, rows, columns, out);
}

// The columns of B as panels of 1 to kVectors vectors, as even as can be: no panel of one vector beside full ones.
template <class T>
struct Panels {
  std::int64_t columns, vectors, count;

  explicit Panels(std::int64_t n) : columns(n), vectors(ceil_div(n, kLanes<T>)), count(ceil_div(vectors, kVectors)) {}
  std::int64_t begin(std::int64_t panel) const { return panel * vectors / count * kLanes<T>; }
  // In columns: padded to whole vectors, and those that exist.
  int width(std::int64_t panel) const { return static_cast<int>(begin(panel + 1) - begin(panel)); }
  int used(std::int64_t panel) const { return static_cast<int>(std::min(begin(panel + 1), columns) - begin(panel)); }
};

// Calls f.operator()<V>() for a panel `width` columns wide.
template <class T, class F>
void visit_width(int width, F&& f) {
  static_assert(kVectors <= 3);
  if (width == kLanes<T>) return f.template operator()<1>();
  if (width == 2 * kLanes<T>) return f.template operator()<2>();
  f.template operator()<kVectors>();
}

}  // namespace grt::cpu
