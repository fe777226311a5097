// Matrix products on packed panels, for f32 and f64: C (M, N) = op(A) (M, K) op(B) (K, N), or += of it.
//
// A strided view describes any transpose: element (i, k) of A lies at A.data[i * A.row + k * A.col], one of the two
// strides being 1. Each element of C is summed over k in one fixed order whatever the number of threads.
#pragma once

#include <cstdint>

namespace grt::cpu {

template <class T>
struct Strided {
  const T* data;
  std::int64_t row, col;  // distance between rows, between columns, in elements
};

// On the thread pool. C's rows are `ldc` elements apart. `bias` (N) is added to each row, or null.
template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Strided<T> a, Strided<T> b, T* c, std::int64_t ldc, bool add,
          const T* bias = nullptr);

// On the calling thread alone, with per-thread scratch memory: for small products inside another kernel's chunk.
template <class T>
void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Strided<T> a, Strided<T> b, T* c, std::int64_t ldc,
                 bool add);

extern template void gemm<float>(std::int64_t, std::int64_t, std::int64_t, Strided<float>, Strided<float>, float*,
                                 std::int64_t, bool, const float*);
extern template void gemm<double>(std::int64_t, std::int64_t, std::int64_t, Strided<double>, Strided<double>, double*,
                                  std::int64_t, bool, const double*);
extern template void gemm_serial<float>(std::int64_t, std::int64_t, std::int64_t, Strided<float>, Strided<float>,
                                        float*, std::int64_t, bool);
extern template void gemm_serial<double>(std::int64_t, std::int64_t, std::int64_t, Strided<double>, Strided<double>,
                                         double*, std::int64_t, bool);

}  // namespace grt::cpu
