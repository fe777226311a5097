// C = op(A) op(B) by register tiles over packed panels. k is cut into even passes whose panels fit the caches; each
// element of C is, for every pass, one chain of multiply-adds in ascending k that is then added to what C holds. How
// rows and columns are cut changes nothing in that chain, so a row's bits depend neither on M nor on the threads.
#include "ops/cpu/gemm.h"

#include <algorithm>

#include "core/threads.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/portable/product.h"
#include "ops/cpu/tile.h"

namespace grt::cpu {
namespace {

using std::int64_t;

// Of a pass: a panel of B stays in L2, one of A in L1. In the portable level it is so short that Eigen cuts it no
// further.
constexpr int64_t kDepth = kIsa == Isa::portable ? 192 : 768;
constexpr int64_t kBlockBytes = int64_t{6} << 20;  // packed columns of B at a time, shared by the threads in L3
constexpr int64_t kTaskRows = 64;                  // rows of A packed by a task: they stay in L2
constexpr int64_t kTaskUnit = std::max(kRows, kLanes<float>);  // rows that lie side by side share cache lines
constexpr int64_t kTasks = 16;                                 // enough to keep a few threads evenly busy
constexpr int64_t kStreamBytes = 128 << 10;                    // of B read by a task when there are few rows
constexpr int64_t kSerialWork = 1 << 15;                       // multiply-adds not worth a second thread

thread_local Scratch packed_a, packed_b;

// Even passes, of an even number of steps. They depend on k alone, and are the same for both forms of bf16.
template <class F>
int64_t pass_of(int64_t k) {
  const int64_t most = std::is_same_v<F, Real<F>> ? kDepth : 2 * kDepth;
  return ceil_div(ceil_div(k, ceil_div(k, most)), 2) * 2;
}

template <class F>
void for_tasks(bool parallel, int64_t count, int64_t grain, F&& f) {
  if (parallel) {
    parallel_for(count, grain, f);
  } else {
    f(int64_t{0}, count);
  }
}

template <class F, class T = Real<F>>
void pack_b(const Panels<T>& panels, int64_t panel, int64_t depth, Strided<T> b, Element<F>* dst) {
  visit_width<T>(panels.width(panel), [&]<int V>() {
    pack<F, V * kLanes<T>>(b.data + panels.begin(panel) * b.col, b.col, b.row, panels.used(panel), depth, dst);
  });
}

// Rows of A as panels of kRows rows, one after the other.
template <class F, class T = Real<F>>
void pack_a(int64_t rows, int64_t depth, Strided<T> a, Element<F>* dst) {
  const int64_t whole = a.row == 1 ? pack_side_by_side<F, kRows>(a.data, a.col, rows, depth, dst) : 0;
  for (int64_t i = whole; i < rows; i += kRows)
    pack<F, kRows>(a.data + i * a.row, a.row, a.col, static_cast<int>(std::min<int64_t>(kRows, rows - i)), depth,
                   dst + i * elements<F>(depth));
}

// Rows of C, `rows` of them, in the panels [first, last): packs the rows of A, then runs every tile. The tiles of a
// panel fetch the next one, each its share; after the last comes the first, for the rows of another task.
template <class F, class T = Real<F>>
void multiply_block(const Panels<T>& panels, int64_t first, int64_t last, int64_t rows, int64_t depth, Strided<T> a,
                    const Element<F>* b, const Output<T>& out) {
  const int64_t steps = elements<F>(depth), tiles = ceil_div(rows, kRows);
  auto* pa = packed_a.get<Element<F>>(tiles * kRows * steps);
  pack_a<F>(rows, depth, a, pa);
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t column = panels.begin(panel), next = panel + 1 < last ? panel + 1 : first;
    const int64_t share = panels.width(next) / tiles;
    const int width = panels.width(panel), used = panels.used(panel);
    visit_width<T>(width, [&]<int V>() {
      for (int64_t i = 0; i < tiles; ++i)
        multiply_part<F, kRows, V>(steps, pa + i * kRows * steps, b + column * steps, width,
                                   static_cast<int>(std::min<int64_t>(kRows, rows - i * kRows)), used,
                                   out.at(i * kRows, column),
                                   Ahead<Element<F>>{b + (panels.begin(next) + i * share) * steps, share});
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
    rows = ceil_div(ceil_div(m, row_blocks), kTaskUnit) * kTaskUnit;
    row_blocks = ceil_div(m, rows);
  }
};

// Panels of columns of B, `depth` steps deep.
template <class F, class T = Real<F>>
void pack_panels(bool parallel, const Panels<T>& panels, int64_t depth, Strided<T> b, Element<F>* to) {
  for_tasks(parallel, panels.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) pack_b<F>(panels, p, depth, b, to + panels.begin(p) * elements<F>(depth));
  });
}

// One pass over k for columns of B whose panels lie together.
template <class F, class T = Real<F>>
void multiply_pass(bool parallel, int64_t m, const Panels<T>& panels, int64_t depth, Strided<T> a, const Element<F>* b,
                   const Output<T>& out) {
  const Tasks tasks(m, panels.count);
  for_tasks(parallel, tasks.row_blocks * tasks.column_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = t / tasks.column_blocks * tasks.rows, block = t % tasks.column_blocks;
      multiply_block<F>(panels, block * panels.count / tasks.column_blocks,
                        (block + 1) * panels.count / tasks.column_blocks, std::min(tasks.rows, m - row), depth,
                        {a.data + row * a.row, a.row, a.col}, b, out.at(row, 0));
    }
  });
}

// R rows by one vector of columns whose elements lie k after k, `columns` of them being real: B is transposed in
// registers and not stored. Memory is fetched ahead in the order of its addresses, one stream instead of one per
// column.
template <class F, int R, class T = Real<F>>
void multiply_columns(int64_t depth, const T* a, const T* b, int64_t ldb, int columns, T* tile) {
  constexpr int kSide = kLanes<T>;
  const auto read = [](Vec<T> v) {
    if constexpr (Format<F>::kSwapped) v = rounded(v);
    return v;
  };
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
      row[j] = read(load(column[j] + k));
      __builtin_prefetch(ahead + ahead_k);
      ahead_k += kSide;
      if (ahead_k >= depth) ahead += ldb, ahead_k = 0;
    }
    transpose<T, kSide, kSide>(row);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] += row[Format<F>::kSwapped ? i ^ 1 : i] * a[(k + i) * R + r];
  }
  for (; k < depth; ++k) {
    Vec<T> row;
    const int64_t partner = Format<F>::kSwapped ? std::min(k ^ 1, depth - 1) : k;
    for (int j = 0; j < kSide; ++j) row[j] = column[j][partner];
    for (int r = 0; r < R; ++r) sum[r] += read(row) * a[k * R + r];
  }
  for (int r = 0; r < R; ++r) store(tile + r * kSide, sum[r]);
}

// y = x W^T and the like: m <= R rows, the columns of B contiguous.
template <class F, int R, class T = Real<F>>
void multiply_few_transposed(bool parallel, int64_t m, int64_t n, int64_t k, const T* a, Strided<T> b,
                             const Output<T>& out) {
  constexpr int kWidth = kLanes<T>;
  const int64_t depth = pass_of<F>(k), grain = ceil_div(kStreamBytes, k * kVectorBytes);
  for_tasks(parallel, ceil_div(n, kWidth), grain, [&](int64_t begin, int64_t end) {
    alignas(kVectorBytes) T tile[R * kWidth];
    for (int64_t j = begin * kWidth; j < std::min(n, end * kWidth); j += kWidth) {
      const int columns = static_cast<int>(std::min<int64_t>(kWidth, n - j));
      for (int64_t first = 0; first < k; first += depth) {
        multiply_columns<F, R>(std::min(depth, k - first), a + first * R, b.data + first + j * b.col, b.col, columns,
                               tile);
        write_part<T>(tile, kWidth, static_cast<int>(m), columns, out.at(0, j).pass(first));
      }
    }
  });
}

// m <= R rows, the rows of B contiguous: they are read where they are, unless they have to be rounded or the last panel
// is incomplete.
template <class F, int R, class T = Real<F>>
void multiply_few_straight(bool parallel, int64_t m, int64_t n, int64_t k, const T* a, Strided<T> b,
                           const Output<T>& out) {
  const int64_t depth = pass_of<F>(k), grain = ceil_div(kStreamBytes, k * kVectors * kVectorBytes);
  const Panels<T> panels(n);
  for_tasks(parallel, panels.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t first = 0; first < k; first += depth) {
        const int64_t column = panels.begin(p), length = std::min(depth, k - first);
        const int width = panels.width(p), used = panels.used(p);
        const T* rows = b.data + first * b.row + column;
        int64_t ldb = b.row;
        if (used < width || Format<F>::kSwapped) {
          T* copy = packed_b.get<T>(width * length);
          pack_b<F>(panels, p, length, {b.data + first * b.row, b.row, 1}, copy);
          rows = copy;
          ldb = width;
        }
        visit_width<T>(width, [&]<int V>() {
          multiply_part<F, R, V>(length, a + first * R, rows, ldb, static_cast<int>(m), used,
                                 out.at(0, column).pass(first));
        });
      }
  });
}

// At most R rows: every element of B is used so few times that packing it would cost more than it saves.
template <class F, int R, class T = Real<F>>
void multiply_few(bool parallel, int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, const Output<T>& out) {
  T* pa = packed_a.get<T>(k * R);
  pack<F, R>(a.data, a.row, a.col, static_cast<int>(m), k, pa);
  if (b.row == 1) {
    multiply_few_transposed<F, R>(parallel, m, n, k, pa, b, out);
  } else {
    multiply_few_straight<F, R>(parallel, m, n, k, pa, b, out);
  }
}

// Packs B in blocks of columns, where its panels are not kept from an earlier product, and multiplies; or leaves what
// columns it can to Eigen.
template <class F, class T = Real<F>>
void multiply_many(bool parallel, int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, const Output<T>& out,
                   Kept* kept) {
  constexpr int64_t kPanel = kVectors * kLanes<T>, kBytes = sizeof(Element<F>);
  const int64_t depth = pass_of<F>(k);
  int64_t column = 0;
  if constexpr (kIsa == Isa::portable && std::is_same_v<F, T>) {
    column = n / kEigenColumns * kEigenColumns;
    for (int64_t first = 0; first < k && column > 0; first += depth)
      eigen_product<T>(m, column, std::min(depth, k - first), {a.data + first * a.col, a.row, a.col},
                       {b.data + first * b.row, b.row, b.col}, out.pass(first));
  }
  const int64_t blocks = ceil_div(n * elements<F>(depth) * kBytes, kBlockBytes);
  const int64_t width = ceil_div(ceil_div(n, blocks), kPanel) * kPanel;
  const int64_t padded = ceil_div(n - column, kLanes<T>) * kLanes<T>;
  Element<F>* at = kept ? kept->get<Element<F>>(padded * elements<F>(k)) : nullptr;
  for (; column < n; column += width)
    for (int64_t first = 0; first < k; first += depth) {
      const Panels<T> panels(std::min(width, n - column));
      const int64_t length = std::min(depth, k - first), size = panels.vectors * kLanes<T> * elements<F>(length);
      Element<F>* const to = kept ? at : packed_b.get<Element<F>>(size);
      if (!kept || !kept->packed)
        pack_panels<F>(parallel, panels, length, {b.data + first * b.row + column * b.col, b.row, b.col}, to);
      multiply_pass<F>(parallel, m, panels, length, {a.data + first * a.col, a.row, a.col}, to,
                       out.at(0, column).pass(first));
      at += kept ? size : 0;
    }
  if (kept) kept->packed = true;
}

template <class T>
void write_sum_of_nothing(int64_t m, int64_t n, const Output<T>& out) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T& c = out.c[i * out.ldc + j];
      c = (out.add ? c : T(0)) + (out.bias ? out.bias[j] : T(0));
    }
}

}  // namespace

int64_t pass_depth(int64_t k) { return pass_of<float>(k); }

template <class F, class T>
void gemm(int64_t m, int64_t n, int64_t k, Strided<T> a, Strided<T> b, T* c, int64_t ldc, bool add, const T* bias,
          Kept* kept) {
  using Few = std::conditional_t<Format<F>::kDepth == 1, F, Rounded>;  // elements that are also values
  const Output<T> out{c, ldc, add, bias};
  if (m == 0 || n == 0) return;
  if (k == 0) return write_sum_of_nothing(m, n, out);
  const bool parallel = m * n * k > kSerialWork;
  if (m == 1) return multiply_few<Few, 1>(parallel, m, n, k, a, b, out);
  if (m == 2) return multiply_few<Few, 2>(parallel, m, n, k, a, b, out);
  if (m <= 4) return multiply_few<Few, 4>(parallel, m, n, k, a, b, out);
  if (m <= kRows) return multiply_few<Few, kRows>(parallel, m, n, k, a, b, out);
  multiply_many<F>(parallel, m, n, k, a, b, out, kept);
}

template void gemm<float>(int64_t, int64_t, int64_t, Strided<float>, Strided<float>, float*, int64_t, bool,
                          const float*, Kept*);
template void gemm<double>(int64_t, int64_t, int64_t, Strided<double>, Strided<double>, double*, int64_t, bool,
                           const double*, Kept*);
template void gemm<Bf16>(int64_t, int64_t, int64_t, Strided<float>, Strided<float>, float*, int64_t, bool, const float*,
                         Kept*);

}  // namespace grt::cpu
