// The product of the portable level: Eigen's.
#pragma once

#include "ops/cpu/gemm.h"
#include "ops/cpu/tile.h"

namespace grt::cpu {

// A multiple of the columns that Eigen's kernel takes at a time, 12, 8, 6 or 4: it adds them up in ascending k, but a
// remainder in two halves.
inline constexpr std::int64_t kEigenColumns = 24;

// As one pass of ops/cpu/gemm.cpp: `depth` steps of k, with the bits that its tiles would give. n is a multiple of
// kEigenColumns.
template <class T>
void eigen_product(std::int64_t m, std::int64_t n, std::int64_t depth, Strided<T> a, Strided<T> b,
                   const Output<T>& out);

}  // namespace grt::cpu
