// What the two passes of attention share: a head's rows, blocks of queries, and products on panels that are packed once
// and used by several blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/gemm.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/tile.h"

namespace grt::cpu {

// Rows of one head: `data` is the first element of the row at position `first`, rows are `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride, first = 0;
  T* at(std::int64_t position) const { return data + (position - first) * stride; }
};

// Queries begin..end-1 of one head, of `width` elements each.
struct Block {
  std::int64_t begin, end, width;
  std::int64_t count() const { return end - begin; }
};

inline constexpr std::int64_t kLargestBlock = 128;
inline std::int64_t query_block(std::int64_t length) { return length >= 512 ? kLargestBlock : 64; }

template <class T>
std::int64_t padded(std::int64_t n) {
  return ceil_div(n, kLanes<T>) * kLanes<T>;
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  Vec<T> sum{};
  for_vectors<T>(n, [&](std::int64_t i, int count) { sum += load_part(a + i, count) * load_part(b + i, count); });
  return sum_of<T>(sum);
}

// Products are computed in a format F of format.h, on values of type T = Real<F>.

// Rows from position `first` on, `count` of them, as panels of kRows: the first factor of a product over their
// elements.
template <class F, class T = Real<F>>
void pack_rows(Rows<const T> rows, std::int64_t first, std::int64_t count, std::int64_t width, Element<F>* to) {
  for (std::int64_t i = 0; i < count; i += kRows)
    pack<F, kRows>(rows.at(first + i), rows.stride, 1, static_cast<int>(std::min<std::int64_t>(kRows, count - i)),
                   width, to + i * elements<F>(width));
}

// The same rows as columns of the second factor of a product over their elements ...
template <class F, class T = Real<F>>
void pack_transposed_columns(const Panels<T>& panels, Rows<const T> rows, std::int64_t first, std::int64_t width,
                             Element<F>* to) {
  for (std::int64_t p = 0; p < panels.count; ++p)
    visit_width<T>(panels.width(p), [&]<int V>() {
      pack<F, V * kLanes<T>>(rows.at(first + panels.begin(p)), rows.stride, 1, panels.used(p), width,
                             to + panels.begin(p) * elements<F>(width));
    });
}

// ... and as rows of the second factor of a product over them: `panels` cut their elements.
template <class F, class T = Real<F>>
void pack_columns(const Panels<T>& panels, Rows<const T> rows, std::int64_t first, std::int64_t count, Element<F>* to) {
  for (std::int64_t p = 0; p < panels.count; ++p)
    visit_width<T>(panels.width(p), [&]<int V>() {
      pack<F, V * kLanes<T>>(rows.at(first) + panels.begin(p), 1, rows.stride, panels.used(p), count,
                             to + panels.begin(p) * elements<F>(count));
    });
}

// Lanes that the panels of `rows` rows, or of the columns of `panels`, hold for each element in depth.
inline std::int64_t row_room(std::int64_t rows) { return ceil_div(rows, kRows) * kRows; }
template <class T>
std::int64_t column_room(const Panels<T>& panels) {
  return panels.vectors * kLanes<T>;
}

// At most kRows rows times one panel of columns, `depth` steps deep.
template <class F, class T = Real<F>>
void multiply_panel(const Panels<T>& panels, std::int64_t panel, std::int64_t depth, const Element<F>* a,
                    const Element<F>* b, std::int64_t rows, const Output<T>& out) {
  const int width = panels.width(panel);
  visit_width<T>(width, [&]<int V>() {
    multiply_part<F, kRows, V>(elements<F>(depth), a, b, width, static_cast<int>(std::min<std::int64_t>(kRows, rows)),
                               panels.used(panel), out);
  });
}

// The scores of `count` packed queries, the first at position `first`, against packed keys, the first at position
// `first_key`: but for tiles whose keys all come after their queries.
template <class F, class T = Real<F>>
void causal_scores(const Panels<T>& keys, const Element<F>* packed_keys, std::int64_t first_key,
                   const Element<F>* packed_queries, std::int64_t first, std::int64_t count, std::int64_t width,
                   T* score, std::int64_t stride) {
  const std::int64_t deep = elements<F>(width);
  for (std::int64_t p = 0; p < keys.count; ++p) {
    const std::int64_t key = keys.begin(p), hidden = first_key + key - first;  // queries before the panel's first key
    if (hidden >= count) return;
    for (std::int64_t i = std::max<std::int64_t>(0, hidden) / kRows * kRows; i < count; i += kRows)
      multiply_panel<F>(keys, p, width, packed_queries + i * deep, packed_keys + key * deep, count - i,
                        Output<T>{score + i * stride + key, stride, false, nullptr});
  }
}

}  // namespace grt::cpu
