// Matrix products on packed panels, for f32 and f64: C (M, N) = op(A) (M, K) op(B) (K, N), or += of it. The format
// (format.h) says how the factors' elements are multiplied: float, double, or Bf16 for f32 matrices.
//
// A strided view describes any transpose: element (i, k) of A lies at A.data[i * A.row + k * A.col], one of the two
// strides being 1. Each element of C is summed over k in one fixed order whatever the number of threads.
#pragma once

#include <cstdint>

#include "ops/cpu/format.h"
#include "ops/cpu/kept.h"

namespace grt::cpu {

template <class T>
struct Strided {
  const T* data;
  std::int64_t row, col;  // distance between rows, between columns, in elements
};

// Steps in k that an element of C is summed over before they are added to it, in an f32 or f64 product.
std::int64_t pass_depth(std::int64_t k);

// On the thread pool; inside a chunk of a parallel_for, on the calling thread alone. C's rows are `ldc` elements apart.
// `bias` (N) is added to each row, or null. Where B's panels are kept, they are packed once and then reused.
template <class F, class T = Real<F>>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Strided<T> a, Strided<T> b, T* c, std::int64_t ldc, bool add,
          const T* bias = nullptr, Kept* kept = nullptr);

// Calls f.operator()<F>() with the format for products of tensors of a type: how matmul and attention pick it.
template <class Function>
void visit_format(DType stored, DType products, Function&& f) {
  if (stored == DType::f32 && products == DType::bf16) return f.template operator()<Bf16>();
  visit_real(stored, [&]<class T>() { f.template operator()<T>(); });
}

}  // namespace grt::cpu
