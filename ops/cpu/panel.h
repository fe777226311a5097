// Panels of packed weights (ops/kernels.h, pack), and how they are read.
//
// A panel holds kPanelRows rows of a weight, run by run of kPanelColumns columns. A run of int8 begins with the scales
// of the rows. Then come words of 32 bits, each with kPerWord neighbours in a row: the first word of every row, then
// the second, and so on. So a panel is one sequential stream in the order of the columns, and a vector loaded from it
// has a row in each lane whatever its width.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "ops/cpu/simd.h"

namespace grt::cpu {

using Word = std::uint32_t;

// What a type's words mean: `value` gives the i-th of a word's columns, before the scale.
template <DType type>
struct PackedFormat;

template <>
struct PackedFormat<DType::packed_f32> {
  static constexpr int kPerWord = 1;
  static constexpr bool kScaled = false;
  static Vec<float> value(Vec<Word> w, int) { return std::bit_cast<Vec<float>>(w); }
};

template <>
struct PackedFormat<DType::packed_bf16> {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  static Vec<float> value(Vec<Word> w, int i) { return std::bit_cast<Vec<float>>(i == 0 ? w << 16 : w & 0xffff0000u); }
};

template <>
struct PackedFormat<DType::packed_int8> {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  static Vec<float> value(Vec<Word> w, int i) {
    return __builtin_convertvector(std::bit_cast<Vec<std::int32_t>>(w << (24 - 8 * i)) >> 24, Vec<float>);
  }
};

inline constexpr std::int64_t kRowsOfPanel = kPanelRows, kColumnsOfRun = kPanelColumns;

template <DType type>
inline constexpr std::int64_t kRunWords = kRowsOfPanel*(kColumnsOfRun / PackedFormat<type>::kPerWord +
                                                        (PackedFormat<type>::kScaled ? 1 : 0));

// In words, for a weight of so many columns.
template <DType type>
std::int64_t panel_words(std::int64_t columns) {
  return (columns + kColumnsOfRun - 1) / kColumnsOfRun * kRunWords<type>;
}

// How far ahead of its use a word is fetched: the time that the memory takes to answer. It may lie in the next panel.
inline constexpr std::int64_t kWordsAhead = 8192 / sizeof(Word);

// Calls use(k, v, w) for each column first + k of [first, last), in ascending order, with the weights w of the rows
// that vector v = 0..V-1 has; `panel` begins at the first of these rows.
template <DType type, int V, class Use>
inline void for_weights(const Word* panel, std::int64_t first, std::int64_t last, Use&& use) {
  using Format = PackedFormat<type>;
  constexpr int kPer = Format::kPerWord, kLane = kLanes<float>;
  for (std::int64_t column = first; column < last;) {
    const std::int64_t in_run = column & (kColumnsOfRun - 1), end = std::min(last, column - in_run + kColumnsOfRun);
    const Word* words = panel + (column - in_run) / kColumnsOfRun * kRunWords<type>;
    Vec<float> scale[V];
    if constexpr (Format::kScaled) {
      for (int v = 0; v < V; ++v) scale[v] = std::bit_cast<Vec<float>>(load(words + v * kLane));
      words += kRowsOfPanel;
    }
    words += in_run / kPer * kRowsOfPanel;
    const auto word = [&](int from, int to) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const Vec<Word> w = load(words + v * kLane);
        __builtin_prefetch(words + v * kLane + kWordsAhead);
#pragma GCC unroll 4
        for (int i = from; i < to; ++i) {
          Vec<float> value = Format::value(w, i);
          if constexpr (Format::kScaled) value *= scale[v];
          use(column - first + i - from, v, value);
        }
      }
      column += to - from;
      words += kRowsOfPanel;
    };
    if (const int from = static_cast<int>(in_run & (kPer - 1)); from > 0)
      word(from, static_cast<int>(std::min<std::int64_t>(kPer, from + end - column)));
    while (column + kPer <= end) word(0, kPer);
    if (column < end) word(0, static_cast<int>(end - column));
  }
}

}  // namespace grt::cpu
