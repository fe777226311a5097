// The product of the portable level: Eigen's.
#pragma once

#include "ops/cpu/gemm.h"
#include "ops/cpu/tile.h"

namespace grt::cpu {

// As one pass of ops/cpu/gemm.cpp: `depth` steps of k, with the bits that its tiles would give. n >= kFewColumns.
inline constexpr std::int64_t kFewColumns = 4;
template <class T>
void eigen_product(std::int64_t m, std::int64_t n, std::int64_t depth, Strided<T> a, Strided<T> b,
                   const Output<T>& out);

}  // namespace grt::cpu
