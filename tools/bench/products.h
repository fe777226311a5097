// The speed of matrix products in the shapes that training needs, beside OpenBLAS where it is installed; in bf16 too
// where the CPU has an instruction for it.
#pragma once

#include <string>

#include "tools/bench/report.h"

namespace grt {

bool has_product(const RowChoice& choice);

// `openblas`: a library's file, or empty to look for Debian's.
void bench_gemm(const RowChoice& choice, const std::string& openblas, Device& device, Report& report);

}  // namespace grt
