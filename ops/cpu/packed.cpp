// Products with packed weights. With few rows of A, as in decoding, the time is that of reading the weights: each
// thread reads whole panels, one sequential stream, and each value is widened in registers where it is used. With many
// rows a panel's values are widened once, into the cache. An element of the result is the chain of multiply-adds that
// it is in ops/cpu/gemm.cpp.
#include "ops/cpu/packed.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/panel.h"

namespace grt::cpu {
namespace {

using std::int64_t;

constexpr int kMostRows = kVectorBytes == 64 ? 8 : 4;  // of A at once
constexpr int kSums = 2 * kMostRows;  // vectors of sums; they and what is multiplied fill the registers
constexpr int kPanelVectors = kPanelRows / kLanes<float>;  // of a column of a panel
constexpr int64_t kTaskRows = 256;                         // of A by a panel of weights, where there are many
constexpr int64_t kSerialWork = 1 << 15;                   // multiply-adds not worth a second thread

thread_local Scratch widened;

template <class F>
decltype(auto) visit_packed(DType type, F&& f) {
  if (type == DType::packed_f32) return f.template operator()<DType::packed_f32>();
  if (type == DType::packed_bf16) return f.template operator()<DType::packed_bf16>();
  return f.template operator()<DType::packed_int8>();
}

struct Product {
  int64_t m, n, k;
  const float* a;  // (m, k)
  const Word* w;
  int64_t first_column;  // of w
  int64_t panel_words;
  float* c;  // rows `ldc` elements apart
  int64_t ldc;
  bool add;
  const float* bias;
};

// Columns [first, first + depth) of a panel by as many of A's, from `k` on, of `rows` rows from `row` on.
struct Part {
  const Word* panel;
  int64_t first, depth, k, row;
  int rows;
};

// tile (R, kPanelRows); of rows beyond the part's last, its last again. A function by itself, for the registers' sake.
template <DType type, int R>
[[gnu::noinline]] void multiply_tile(const Product& p, const Part& part, float* tile) {
  constexpr int V = std::min(4, kSums / R), kLane = kLanes<float>;
  const float* a[R];
  for (int r = 0; r < R; ++r) a[r] = p.a + (part.row + std::min(r, part.rows - 1)) * p.k + part.k;
  for (int slice = 0; slice < kPanelVectors; slice += V) {
    Vec<float> sum[R][V] = {};
    for_weights<type, V>(
        part.panel + slice * kLane, part.first,
        part.first + part.depth, [&](int64_t k, int v, Vec<float> w) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r][v] += w * a[r][k];
        });
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) store(tile + r * kRowsOfPanel + (slice + v) * kLane, sum[r][v]);
  }
}

// Adds a pass's sums to C, which the first pass begins.
void write_tile(const Product& p, const Part& part, int64_t column, const float* tile) {
  const bool add = p.add || part.k > 0;
  const float* const bias = part.k == 0 && p.bias ? p.bias + column : nullptr;
  for (int r = 0; r < part.rows; ++r, tile += kRowsOfPanel)
    for_vectors<float>(std::min(kRowsOfPanel, p.n - column), [&](int64_t j, int count) {
      float* const c = p.c + (part.row + r) * p.ldc + column + j;
      Vec<float> sum = load(tile + j);
      if (add) sum += load_part(c, count);
      if (bias) sum += load_part(bias + j, count);
      store_part(c, sum, count);
    });
}

template <DType type>
void multiply_part(const Product& p, const Part& part, int64_t column) {
  alignas(kVectorBytes) float tile[kMostRows * kRowsOfPanel];
  if (part.rows == 1) {
    multiply_tile<type, 1>(p, part, tile);
  } else if (part.rows == 2) {
    multiply_tile<type, 2>(p, part, tile);
  } else if (part.rows <= 4) {
    multiply_tile<type, 4>(p, part, tile);
  } else {
    multiply_tile<type, kMostRows>(p, part, tile);
  }
  write_tile(p, part, column, tile);
}

// Calls f(first, depth) for the passes over k, which are those of the other products.
template <class F>
void for_passes(int64_t k, F&& f) {
  const int64_t depth = pass_depth(k);
  for (int64_t first = 0; first < k; first += depth) f(first, std::min(depth, k - first));
}

// The columns [first, first + depth) of a panel as those of one of f32 that begins with them.
template <DType type>
const Word* widen(const Word* panel, int64_t first, int64_t depth) {
  Word* const to = widened.get<Word>(panel_words<DType::packed_f32>(depth));
  for_weights<type, kPanelVectors>(panel, first, first + depth, [&](int64_t k, int v, Vec<float> w) {
    store(to + k * kRowsOfPanel + v * kLanes<float>, std::bit_cast<Vec<Word>>(w));
  });
  return to;
}

template <DType type>
void multiply_few(const Product& p, int64_t panel) {
  const Word* const weights = p.w + panel * p.panel_words;
  for_passes(p.k, [&](int64_t k, int64_t depth) {
    multiply_part<type>(p, {weights, p.first_column + k, depth, k, 0, static_cast<int>(p.m)}, panel * kRowsOfPanel);
  });
}

template <DType type>
void multiply_many(const Product& p, int64_t panel, int64_t first_row, int64_t last_row) {
  const Word* const weights = p.w + panel * p.panel_words;
  for_passes(p.k, [&](int64_t k, int64_t depth) {
    const bool exact = type == DType::packed_f32;
    Part part{weights, p.first_column + k, depth, k, 0, 0};
    if (!exact) part.panel = widen<type>(weights, part.first, depth), part.first = 0;
    for (part.row = first_row; part.row < last_row; part.row += kMostRows) {
      part.rows = static_cast<int>(std::min<int64_t>(kMostRows, last_row - part.row));
      multiply_part<DType::packed_f32>(p, part, panel * kRowsOfPanel);
    }
  });
}

// Tasks of work that is too little for a second thread are one.
int64_t grain_of(const Product& p, int64_t grain) {
  return p.m * p.n * p.k > kSerialWork ? grain : std::numeric_limits<int64_t>::max() / 2;
}

template <DType type>
void multiply(const Product& p) {
  const int64_t panels = (p.n + kRowsOfPanel - 1) / kRowsOfPanel;
  if (p.m <= kMostRows) {
    const int64_t threads = thread_count();  // a stream for each: how panels are shared out changes no bit
    parallel_for(panels, grain_of(p, (panels + threads - 1) / threads), [&](int64_t begin, int64_t end) {
      const Word* const first = p.w + begin * p.panel_words;
      for (int64_t i = 0; i < kWordsAhead; i += 64 / sizeof(Word)) __builtin_prefetch(first + i);
      for (int64_t panel = begin; panel < end; ++panel) multiply_few<type>(p, panel);
    });
    return;
  }
  const int64_t blocks = (p.m + kTaskRows - 1) / kTaskRows;
  parallel_for(panels * blocks, grain_of(p, 1), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % blocks * kTaskRows;
      multiply_many<type>(p, task / blocks, row, std::min(p.m, row + kTaskRows));
    }
  });
}

// --- packing ---

// The scale of a run of int8 values; 0, and with it all values, well before it would be a subnormal number, which has
// fewer digits or is taken for 0.
float scale_of(const float* w, int64_t n) {
  constexpr float kLeast = 1e-30f;
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(w[i]));
  return most < kLeast ? 0 : most / 127;
}

// The bits of a value, in the lowest of a word.
template <DType type>
Word bits_of(float x, float scale) {
  if constexpr (type == DType::packed_f32) return std::bit_cast<Word>(x);
  if constexpr (type == DType::packed_bf16) {
    const Word bits = std::bit_cast<Word>(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  }
  const float q = scale == 0 ? 0 : std::nearbyint(x / scale);
  return static_cast<Word>(static_cast<std::int32_t>(std::clamp(q, -127.0f, 127.0f))) & 0xffu;
}

// Columns [first, first + n) of one row, which lies in lane `lane` of a panel.
template <DType type>
void pack_run(Word* run, int64_t lane, const float* w, int64_t n) {
  using Format = PackedFormat<type>;
  float scale = 1;
  if constexpr (Format::kScaled) {
    scale = scale_of(w, n);
    run[lane] = std::bit_cast<Word>(scale);
    run += kRowsOfPanel;
  }
  for (int64_t i = 0; i < n; ++i)
    run[i / Format::kPerWord * kRowsOfPanel + lane] |= bits_of<type>(w[i], scale)
                                                       << (i % Format::kPerWord * (32 / Format::kPerWord));
}

template <DType type>
void pack_panel(Word* panel, int64_t words, const float* w, int64_t rows, int64_t columns) {
  std::fill_n(panel, words, Word{0});
  for (int64_t lane = 0; lane < rows; ++lane)
    for (int64_t k = 0; k < columns; k += kColumnsOfRun)
      pack_run<type>(panel + k / kColumnsOfRun * kRunWords<type>, lane, w + lane * columns + k,
                     std::min(kColumnsOfRun, columns - k));
}

}  // namespace

void CpuKernels::pack(const Tensor& packed, const Tensor& w) {
  const int64_t rows = w.shape().rows(), columns = w.shape().last();
  visit_packed(packed.dtype(), [&]<DType type>() {
    const int64_t words = panel_words<type>(columns);
    parallel_for((rows + kRowsOfPanel - 1) / kRowsOfPanel, 1, [&](int64_t panel, int64_t) {
      const int64_t row = panel * kRowsOfPanel;
      pack_panel<type>(packed.data<Word>() + panel * words, words, w.data<float>() + row * columns,
                       std::min(kRowsOfPanel, rows - row), columns);
    });
  });
}

void packed_matmul(const Into& y, Columns columns, const Tensor& a, const Factor& w, const Tensor& bias) {
  visit_packed(w.tensor.dtype(), [&]<DType type>() {
    const Product p{.m = a.shape().rows(),
                    .n = w.tensor.shape().rows(),
                    .k = a.shape().last(),
                    .a = a.data<float>(),
                    .w = w.tensor.data<Word>(),
                    .first_column = w.columns.begin,
                    .panel_words = panel_words<type>(w.tensor.shape().last()),
                    .c = y.to.data<float>() + columns.begin,
                    .ldc = y.to.shape().last(),
                    .add = y.add,
                    .bias = bias ? bias.data<float>() : nullptr};
    if (p.m == 0 || p.n == 0) return;
    if (p.k == 0) return gemm<float>(p.m, p.n, 0, {}, {}, p.c, p.ldc, p.add, p.bias);
    multiply<type>(p);
  });
}

void read_packed_row(const Tensor& w, int64_t row, float* to) {
  visit_packed(w.dtype(), [&]<DType type>() {
    const int64_t columns = w.shape().last(), lane = row % kRowsOfPanel;
    const Word* const panel = w.data<Word>() + row / kRowsOfPanel * panel_words<type>(columns);
    const int64_t in_vector = lane % kLanes<float>;
    for_weights<type, 1>(panel + lane - in_vector, 0, columns,
                         [&](int64_t k, int, Vec<float> values) { to[k] = values[in_vector]; });
  });
}

}  // namespace grt::cpu
