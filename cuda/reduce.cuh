// Sums over rows whose order depends on the shape alone: rows are summed in parts, the parts' sums in their order.
#pragma once

#include "cuda/device.cuh"

namespace grt::cuda {

// Parts of R rows: at most 64, of at least 16 rows.
inline std::int64_t part_rows(std::int64_t rows) { return std::max<std::int64_t>(16, ceil_div(rows, 64)); }
inline std::int64_t row_parts(std::int64_t rows) { return ceil_div(rows, part_rows(rows)); }

// y (C) = the sum of the rows of parts, which lie `stride` elements apart.
void add_parts(cudaStream_t stream, const Into& y, const float* parts, std::int64_t count, std::int64_t stride);

}  // namespace grt::cuda
