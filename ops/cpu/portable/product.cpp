#include "ops/cpu/portable/product.h"

#include <Eigen/Core>

#include "core/threads.h"
#include "ops/cpu/host/scratch.h"

namespace grt::cpu {
namespace {

using std::int64_t;

// Rows at a time: a multiple of the 4 that Eigen's kernel takes, so that every row goes the same way through it. A
// shorter last block is filled up.
constexpr int64_t kBlockRows = 48;
constexpr int64_t kBlockColumns = 10 * kEigenColumns;  // of a task

template <class T, int order>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, order>;

// The matrix that a view describes, for f: row-major or column-major.
template <class T, class F>
void visit_map(Strided<T> view, int64_t rows, int64_t columns, F&& f) {
  if (view.col == 1) {
    f(Eigen::Map<const Matrix<T, Eigen::RowMajor>, 0, Eigen::OuterStride<>>(view.data, rows, columns,
                                                                            Eigen::OuterStride<>(view.row)));
  } else {
    f(Eigen::Map<const Matrix<T, Eigen::ColMajor>, 0, Eigen::OuterStride<>>(view.data, rows, columns,
                                                                            Eigen::OuterStride<>(view.col)));
  }
}

thread_local Scratch tiles, filled;

template <class T>
void multiply_block(int64_t rows, int64_t columns, int64_t depth, Strided<T> a, Strided<T> b, const Output<T>& out) {
  if (rows < kBlockRows) {
    T* const copy = filled.get<T>(kBlockRows * depth);
    for (int64_t i = 0; i < kBlockRows; ++i)
      for (int64_t k = 0; k < depth; ++k) copy[i * depth + k] = i < rows ? a.data[i * a.row + k * a.col] : T(0);
    a = {copy, depth, 1};
  }
  T* const tile = tiles.get<T>(kBlockRows * columns);
  Eigen::Map<Matrix<T, Eigen::RowMajor>> product(tile, kBlockRows, columns);
  visit_map(a, kBlockRows, depth, [&](const auto& left) {
    visit_map(b, depth, columns, [&](const auto& right) { product.noalias() = left * right; });
  });
  write_part(tile, static_cast<int>(columns), static_cast<int>(rows), static_cast<int>(columns), out);
}

}  // namespace

template <class T>
void eigen_product(int64_t m, int64_t n, int64_t depth, Strided<T> a, Strided<T> b, const Output<T>& out) {
  const int64_t column_blocks = ceil_div(n, kBlockColumns), row_blocks = ceil_div(m, kBlockRows);
  parallel_for(row_blocks * column_blocks, 1, [&](int64_t t, int64_t) {
    const int64_t row = t / column_blocks * kBlockRows, block = t % column_blocks;
    const int64_t begin = block * kBlockColumns, end = std::min(n, begin + kBlockColumns);
    multiply_block<T>(std::min(kBlockRows, m - row), end - begin, depth, {a.data + row * a.row, a.row, a.col},
                      {b.data + begin * b.col, b.row, b.col}, out.at(row, begin));
  });
}

template void eigen_product<float>(int64_t, int64_t, int64_t, Strided<float>, Strided<float>, const Output<float>&);
template void eigen_product<double>(int64_t, int64_t, int64_t, Strided<double>, Strided<double>, const Output<double>&);

}  // namespace grt::cpu
