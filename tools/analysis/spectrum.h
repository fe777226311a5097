// What a weight says by itself: singular values, and the angle between the two halves of each row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace grt {

// Of a (rows, columns) matrix, row-major; descending.
std::vector<double> singular_values(std::span<const double> matrix, std::int64_t rows, std::int64_t columns);

// Columns [begin, begin + count) of a (rows, columns) matrix.
std::vector<double> columns_of(std::span<const double> matrix, std::int64_t rows, std::int64_t begin,
                               std::int64_t count);

// The cosine of the left and the right half of each row of a (rows, 2 d) matrix.
std::vector<double> half_cosines(std::span<const double> matrix, std::int64_t rows);

}  // namespace grt
