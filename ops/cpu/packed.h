// Products with packed weights, and their rows.
#pragma once

#include "ops/kernels.h"

namespace grt::cpu {

// columns of y = a w^T + bias, with `w` packed, transposed. Every row of y has the bits that ops/cpu/gemm.h gives the
// product with the values of w, however many rows there are.
void packed_matmul(const Into& y, Columns columns, const Tensor& a, const Factor& w, const Tensor& bias);

void read_packed_row(const Tensor& w, std::int64_t row, float* to);

}  // namespace grt::cpu
