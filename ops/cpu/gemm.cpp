// C = op(A) op(B) by register tiles over packed panels. k is cut into even passes whose panels fit the caches; each
// element of C is, for every pass, one chain of multiply-adds in ascending k that is then added to what C holds. How
// rows and columns are cut changes nothing in that chain, so a row's bits depend neither on M nor on the threads.
#include "ops/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/tile.h"

namespace grt::cpu {
namespace {

using std::int64_t;

constexpr int64_t kDepth = 768;                    // of a pass: a panel of B stays in L2, one of A in L1
constexpr int64_t kBlockBytes = int64_t{6} << 20;  // packed columns of B at a time, shared by the threads in L3
constexpr int64_t kTaskRows = 64;                  // rows of A packed by a task: they stay in L2
constexpr int64_t kTasks = 16;                     // enough to keep a few threads evenly busy
constexpr int64_t kStreamBytes = 128 << 10;        // of B read by a task when there are few rows
constexpr int64_t kSerialWork = 1 << 15;           // multiply-adds not worth a second thread

thread_local Scratch packed_a, packed_b;

// Even passes. They depend on k alone.
int64_t pass_depth(int64_t k) { return ceil_div(k, ceil_div(k, kDepth)); }

template <class F>
void for_tasks(bool parallel, int64_t count, int64_t grain, F&& f) {
  if (parallel) {
    parallel_for(count, grain, f);
  } else {
    f(int64_t{0}, count);
  }
}

template <class T>
void pack_b(const Panels<T>& panels, int64_t panel, int64_t depth, Strided<T> b, T* dst) {
  visit_width<T>(panels.width(panel), [&]<int V>() {
    pack<T, V * kLanes<T>>(b.data + panels.begin(panel) * b.col, b.col, b.row, panels.used(panel), depth, dst);
  });
}

// Rows of A as panels of kRows rows, one after the other.
template <class T>
void pack_a(int64_t rows, int64_t depth, Strided<T> a, T* dst) {
  int64_t whole = 0;
  if (a.row == 1) {  // across all panels at once: their rows share cache lines
    whole = rows / kRows * kRows;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < whole; i += kRows)
        std::memcpy(dst + i * depth + k * kRows, a.data + i + k * a.col, kRows * sizeof(T));
  }
  for (int64_t i = whole; i < rows; i += kRows)
    pack<T, kRows>(a.data + i * a.row, a.row, a.col, static_cast<int>(std::min<int64_t>(kRows, rows - i)), depth,
                   dst + i * depth);
}

// Rows of C, `rows` of them, in the panels [first, last): packs the rows of A, then runs every tile.
template <class T>
void multiply_block(const Panels<T>& panels, int64_t first, int64_t last, int64_t rows, int64_t depth, Strided<T> a,
                    const T* b, const Output<T>& out) {
  T* pa = packed_a.get<T>(ceil_div(rows, kRows) * kRows * depth);
  pack_a(rows, depth, a, pa);
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t column = panels.begin(panel);
    const int width = panels.width(panel), used = panels.used(panel);
    visit_width<T>(width, [&]<int V>() {
      for (int64_t i = 0; i < rows; i += kRows)
        multiply_part<T, kRows, V>(depth, pa + i * depth, b + column * depth, width,
                                   static_cast<int>(std::min<int64_t>(kRows, rows - i)), used, out.at(i, column));
    });
  }
}

// How C is cut into tasks: by rows first, then by columns, then by fewer rows, until there are enough of them.
struct Tasks {
  int64_t rows, row_blocks, column_blocks;

  Tasks(int64_t m, int64_t panels) {
    row_blocks = ceil_div(m, kTaskRows);
    column_blocks = std::clamp(ceil_div(kTasks, row_blocks), int64_t{1}, std::max<int64_t>(1, panels / 4));
    row_blocks = std::max(row_blocks, ceil_div(kTasks, column_blocks));
    rows = ceil_div(ceil_div(m, row_blocks), kRows) * kRows;
    row_blocks = ceil_div(m, rows);
  }
};

// One pass over k for columns of B that are packed together.
template <class T>
void multiply_pass(bool parallel, int64_t m, int64_t n, int64_t depth, Strided<T> a, Strided<T> b,
                   const Output<T>& out) {
  const Panels<T> panels(n);
  T* pb = packed_b.get<T>(panels.vectors * kLanes<T> * depth);
  for_tasks(parallel, panels.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) pack_b(panels, p, depth, b, pb + panels.begin(p) * depth);
  });
  const Tasks tasks(m, panels.count);
  for_tasks(parallel, tasks.row_blocks * tasks.column_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = t / tasks.column_blocks * tasks.rows, block = t % tasks.column_blocks;
      multiply_block(panels, block * panels.count / tasks.column_blocks,
                     (block + 1) * panels.count / tasks.column_blocks, std::min(tasks.rows, m - row), depth,
                     {a.data + row * a.row, a.row, a.col}, pb, out.at(row, 0));
    }
  });
}

// R rows by one vector of columns whose elements lie k after k, `columns` of them being real: B is transposed in
// registers and not stored. Memory is fetched ahead in the order of its addresses, one stream instead of one per
// column.
template <class T, int R>
void multiply_columns(int64_t depth, const T* a, const T* b, int64_t ldb, int columns, T* tile) {
  constexpr int kSide = kLanes<T>;
  const T* column[kSide];
  for (int j = 0; j < kSide; ++j) column[j] = b + std::min(j, columns - 1) * ldb;
  const T* ahead = b + columns * ldb;
  int64_t ahead_k = 0;
  Vec<T> sum[R] = {};
  int64_t k = 0;
  for (; k + kSide <= depth; k += kSide) {
    Vec<T> row[kSide];
#pragma GCC unroll 16
    for (int j = 0; j < kSide; ++j) {
      row[j] = load(column[j] + k);
      __builtin_prefetch(ahead + ahead_k);
      ahead_k += kSide;
      if (ahead_k >= depth) ahead += ldb, ahead_k = 0;
    }
    transpose<T, kSide>(row);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] += row[i] * a[(k + i) * R + r];
  }
  for (; k < depth; ++k) {
    Vec<T> row;
    for (int j = 0; j < kSide; ++j) row[j] = column[j][k];
    for (int r = 0; r < R; ++r) sum[r] += row * a[k * R + r];
  }
  for (int r = 0; r < R; ++r) store(tile + r * kSide, sum[r]);
}

// y = x W^T and the like: m <= R rows, the columns of B contiguous.
template <class T, int R>
void multiply_few_transposed(bool parallel, int64_t m, int64_t n, int64_t k, const T* a, Strided<T> b,
                             const Output<T>& out) {
  constexpr int kWidth = kLanes<T>;
  const int64_t depth = pass_depth(k), grain = ceil_div(kStreamBytes, k * kVectorBytes);
  for_tasks(parallel, ceil_div(n, kWidth), grain, [&](int64_t begin, int64_t end) {
    alignas(kVectorBytes) T tile[R * kWidth];
    for (int64_t j = begin * kWidth; j < std::min(n, end * kWidth); j += kWidth) {
      const int columns = static_cast<int>(std::min<int64_t>(kWidth, n - j));
      for (int64_t first = 0; first < k; first += depth) {
        multiply_columns<T, R>(std::min(depth, k - first), a + first * R, b.data + first + j * b.col, b.col, columns,
                               tile);
        write_part<T>(tile, kWidth, static_cast<int>(m), columns, out.at(0, j).pass(first));
      }
    }
  });
}

// m <= R rows, the rows of B contiguous: they are read where they are, but for the last panel if it is incomplete.
template <class T, int R>
void multiply_few_straight(bool parallel, int64_t m, int64_t n, int64_t k, const T* a, Strided<T> b,
                           const Output<T>& out) {
  const int64_t depth = pass_depth(k), grain = ceil_div(kStreamBytes, k * kVectors * kVectorBytes);
  const Panels<T> panels(n);
  for_tasks(parallel, panels.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t first = 0; first < k; first += depth) {
        const int64_t column = panels.begin(p), length = std::min(depth, k - first);
        const int width = panels.width(p), used = panels.used(p);
        const T* rows = b.data + first * b.row + column;
        int64_t ldb = b.row;
        if (used < width) {
          T* copy = packed_b.get<T>(width * length);
          pack_b(panels, p, length, {b.data + first * b.row, b.row, 1}, copy);
          rows = copy;
          ldb = width;
        }
        visit_width<T>(width, [&]<int V>() {
          multiply_part<T, R, V>(length, a + first * R, rows, ldb, static_cast<int>(m), used,
                                 out.at(0, column).pass(first));
        });
      }
  });
}

// At most R rows: every element of B is used so few times that packing it would cost more than it saves.
template <class T, int R>
void multiply_few(bool parallel, int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, const Output<T>& out) {
  T* pa = packed_a.get<T>(k * R);
  pack<T, R>(a.data, a.row, a.col, static_cast<int>(m), k, pa);
  if (b.row == 1) {
    multiply_few_transposed<T, R>(parallel, m, n, k, pa, b, out);
  } else {
    multiply_few_straight<T, R>(parallel, m, n, k, pa, b, out);
  }
}

// Packs B, all of it in blocks of columns, and multiplies.
template <class T>
void multiply_many(bool parallel, int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, const Output<T>& out) {
  constexpr int64_t kPanel = kVectors * kLanes<T>;
  const int64_t depth = pass_depth(k);
  const int64_t blocks = ceil_div(n * depth * static_cast<int64_t>(sizeof(T)), kBlockBytes);
  const int64_t width = ceil_div(ceil_div(n, blocks), kPanel) * kPanel;
  for (int64_t column = 0; column < n; column += width)
    for (int64_t first = 0; first < k; first += depth)
      multiply_pass<T>(parallel, m, std::min(width, n - column), std::min(depth, k - first),
                       {a.data + first * a.col, a.row, a.col}, {b.data + first * b.row + column * b.col, b.row, b.col},
                       out.at(0, column).pass(first));
}

template <class T>
void write_sum_of_nothing(int64_t m, int64_t n, const Output<T>& out) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T& c = out.c[i * out.ldc + j];
      c = (out.add ? c : T(0)) + (out.bias ? out.bias[j] : T(0));
    }
}

template <class T>
void multiply(bool parallel, int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, const Output<T>& out) {
  if (m == 0 || n == 0) return;
  parallel = parallel && m * n * k > kSerialWork;
  if (k == 0) return write_sum_of_nothing(m, n, out);
  if (m == 1) return multiply_few<T, 1>(parallel, m, n, k, a, b, out);
  if (m == 2) return multiply_few<T, 2>(parallel, m, n, k, a, b, out);
  if (m <= 4) return multiply_few<T, 4>(parallel, m, n, k, a, b, out);
  if (m <= kRows) return multiply_few<T, kRows>(parallel, m, n, k, a, b, out);
  multiply_many<T>(parallel, m, n, k, a, b, out);
}

}  // namespace

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, T* c, int64_t ldc, bool add, const T* bias) {
  multiply<T>(true, m, n, k, a, b, {c, ldc, add, bias});
}

template <class T>
void gemm_serial(int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, T* c, int64_t ldc, bool add) {
  multiply<T>(false, m, n, k, a, b, {c, ldc, add, nullptr});
}

template void gemm<float>(int64_t, int64_t, int64_t, Strided<float>, Strided<float>, float*, int64_t, bool,
                          const float*);
template void gemm<double>(int64_t, int64_t, int64_t, Strided<double>, Strided<double>, double*, int64_t, bool,
                           const double*);
template void gemm_serial<float>(int64_t, int64_t, int64_t, Strided<float>, Strided<float>, float*, int64_t, bool);
template void gemm_serial<double>(int64_t, int64_t, int64_t, Strided<double>, Strided<double>, double*, int64_t, bool);

}  // namespace grt::cpu
