#include "tools/analysis/spectrum.h"

#include <Eigen/SVD>

#include "core/error.h"
#include "tools/analysis/statistics.h"

namespace grt {

std::vector<double> singular_values(std::span<const double> matrix, std::int64_t rows, std::int64_t columns) {
  check(static_cast<std::int64_t>(matrix.size()) == rows * columns, "singular values: {} elements are not {} x {}",
        matrix.size(), rows, columns);
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXd m = Eigen::Map<const RowMajor>(matrix.data(), rows, columns);
  const Eigen::VectorXd values = Eigen::BDCSVD<Eigen::MatrixXd>(m).singularValues();
  return {values.data(), values.data() + values.size()};
}

std::vector<double> columns_of(std::span<const double> matrix, std::int64_t rows, std::int64_t begin,
                               std::int64_t count) {
  const std::int64_t columns = static_cast<std::int64_t>(matrix.size()) / rows;
  check(begin >= 0 && begin + count <= columns, "columns {}..{} of {}", begin, begin + count, columns);
  std::vector<double> part;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = matrix.subspan(r * columns + begin, count);
    part.insert(part.end(), row.begin(), row.end());
  }
  return part;
}

std::vector<double> half_cosines(std::span<const double> matrix, std::int64_t rows) {
  const std::size_t half = matrix.size() / static_cast<std::size_t>(rows) / 2;
  std::vector<double> cosines;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
    cosines.push_back(cosine(matrix.subspan(2 * r * half, half), matrix.subspan((2 * r + 1) * half, half)));
  return cosines;
}

}  // namespace grt
