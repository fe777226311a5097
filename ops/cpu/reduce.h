// Sums over rows whose order depends on the shape alone: rows are summed in blocks, the blocks' sums in block order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu/simd.h"

namespace grt::cpu {

// Rows of a block, of R in all: at most 64 blocks, of at least 16 rows.
inline std::int64_t row_block(std::int64_t rows) { return std::max<std::int64_t>(16, (rows + 63) / 64); }
inline std::int64_t row_blocks(std::int64_t rows) { return (rows + row_block(rows) - 1) / row_block(rows); }

// sum[c] = sum of x[r][c] over r, or += it, on the calling thread. Rows of x are `stride` elements apart.
template <class T>
void add_rows(T* sum, bool add, const T* x, std::int64_t rows, std::int64_t width, std::int64_t stride) {
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    Vec<T> s = add ? load_part(sum + c, count) : Vec<T>{};
    for (std::int64_t r = 0; r < rows; ++r) s += load_part(x + r * stride + c, count);
    store_part(sum + c, s, count);
  });
}

// y (C) = the sum of the rows of `parts`, (blocks, stride) in memory.
template <class T>
void add_blocks(const Into& y, const T* parts, std::int64_t blocks, std::int64_t stride) {
  parallel_for(y.to.numel(), 1024, [&](std::int64_t begin, std::int64_t end) {
    add_rows(y.to.data<T>() + begin, y.add, parts + begin, blocks, end - begin, stride);
  });
}

}  // namespace grt::cpu
