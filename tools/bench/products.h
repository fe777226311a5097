// The speed of matrix products in the shapes that training GPT-2 needs.
#pragma once

#include "tools/bench/report.h"

namespace grt {

bool has_product(const RowChoice& choice);
void bench_gemm(const RowChoice& choice, Device& device, Report& report);

}  // namespace grt
