// Causal attention on blocks of queries. A block's scores against all keys up to its last query lie in scratch memory
// (rows complete, so softmax needs no second pass); nothing of size T x T over all heads ever exists. Keys and values
// are packed once for several blocks.
#include "ops/cpu/attention.h"

#include <limits>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

constexpr std::int64_t kFewQueries = 4;   // up to here a product on packed panels does not pay
constexpr std::int64_t kGroupBlocks = 4;  // blocks of queries that share packed keys and values

thread_local Scratch packed_keys, packed_values, packed_queries, packed_weights;

template <class T>
struct Softmax {
  T lse, inverse;
};

// Replaces n scores by exp(scale score - top) and the rest up to `end` by 0. Returns top + log(sum) and 1 / sum. The
// row is padded to whole vectors.
template <class T>
Softmax<T> softmax_row(T* score, std::int64_t n, std::int64_t end, T scale) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  std::fill(score + n, score + padded<T>(n), kLowest);
  Vec<T> best = broadcast(kLowest);
  for (std::int64_t j = 0; j < n; j += kLanes<T>) best = max<T>(best, load(score + j));
  const T top = largest_of<T>(best) * scale;
  Vec<T> sum{};
  for (std::int64_t j = 0; j < n; j += kLanes<T>) {
    const Vec<T> e = exp(load(score + j) * scale - top);
    sum += e;
    store(score + j, e);
  }
  if (end > padded<T>(n)) std::fill(score + padded<T>(n), score + end, T(0));
  const T total = sum_of<T>(sum);
  return {top + std::log(total), 1 / total};
}

// to += f from
template <class T>
void add_scaled(T* to, T f, const T* from, std::int64_t n) {
  for_vectors<T>(n, [&](std::int64_t i, int count) {
    store_part(to + i, load_part(to + i, count) + f * load_part(from + i, count), count);
  });
}

// One head's rows. k and v begin at position 0; lse, by position, may be null.
template <class T>
struct Forward {
  Rows<T> out;
  T* lse;
  Rows<const T> q, k, v;
};

// One query alone: out = softmax(scale q k^T) v.
template <class T>
void attend_one(const Forward<T>& head, std::int64_t i, std::int64_t width, T* score) {
  for (std::int64_t j = 0; j <= i; ++j) score[j] = dot(head.q.at(i), head.k.at(j), width);
  const Softmax<T> s = softmax_row(score, i + 1, i + 1, 1 / std::sqrt(T(width)));
  if (head.lse) head.lse[i] = s.lse;
  T* const to = head.out.at(i);
  std::fill_n(to, width, T(0));
  for (std::int64_t j = 0; j <= i; ++j) add_scaled(to, score[j], head.v.at(j), width);
  for (std::int64_t c = 0; c < width; ++c) to[c] *= s.inverse;
}

// Keys and values of one head, up to a position.
template <class F>
struct PackedHead {
  Panels<Real<F>> keys, channels;
  std::int64_t count;
  const Element<F>*k, *v;
};

template <class F, class T = Real<F>>
PackedHead<F> pack_head(const Forward<T>& head, std::int64_t count, std::int64_t width) {
  const Panels<T> keys(count), channels(width);
  auto* const k = packed_keys.get<Element<F>>(column_room(keys) * elements<F>(width));
  auto* const v = packed_values.get<Element<F>>(column_room(channels) * elements<F>(count));
  pack_transposed_columns<F>(keys, head.k, 0, width, k);
  pack_columns<F>(channels, head.v, 0, count, v);
  return {keys, channels, count, k, v};
}

// At most kRows queries from i on, their scores being there: softmax, and the sum of the values that it weighs.
template <class F, class T = Real<F>>
void weigh_values(const Forward<T>& head, const PackedHead<F>& packed, std::int64_t i, std::int64_t rows,
                  std::int64_t width, T* score, std::int64_t stride) {
  const std::int64_t depth = std::min(packed.count, i + rows);  // later keys weigh nothing
  T inverse[kRows];
  for (std::int64_t r = 0; r < rows; ++r) {
    const Softmax<T> s = softmax_row(score + r * stride, i + r + 1, depth, 1 / std::sqrt(T(width)));
    inverse[r] = s.inverse;
    if (head.lse) head.lse[i + r] = s.lse;
  }
  auto* const weights = packed_weights.get<Element<F>>(kRows * elements<F>(depth));
  pack<F, kRows>(score, stride, 1, static_cast<int>(rows), depth, weights);
  T* const to = head.out.at(i);
  for (std::int64_t p = 0; p < packed.channels.count; ++p) {
    const std::int64_t channel = packed.channels.begin(p);
    multiply_panel<F>(packed.channels, p, depth, weights, packed.v + channel * elements<F>(packed.count), rows,
                      Output<T>{to + channel, head.out.stride, false, nullptr});
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < width; ++c) to[r * head.out.stride + c] *= inverse[r];
}

// The queries of `all`, `size` at a time. `score` has room for `size` rows of padded(all.end).
template <class F, class T = Real<F>>
void attend(const Forward<T>& head, const Block& all, std::int64_t size, T* score) {
  if (all.count() <= kFewQueries) {
    for (std::int64_t i = all.begin; i < all.end; ++i) attend_one(head, i, all.width, score);
    return;
  }
  const std::int64_t stride = padded<T>(all.end), width = all.width;
  const PackedHead<F> packed = pack_head<F>(head, all.end, width);
  for (std::int64_t begin = all.begin; begin < all.end; begin += size) {
    const std::int64_t count = std::min(size, all.end - begin);
    auto* const queries = packed_queries.get<Element<F>>(row_room(count) * elements<F>(width));
    pack_rows<F>(head.q, begin, count, width, queries);
    causal_scores<F>(packed.keys, packed.k, 0, queries, begin, count, width, score, stride);
    for (std::int64_t i = 0; i < count; i += kRows)
      weigh_values<F>(head, packed, begin + i, std::min<std::int64_t>(kRows, count - i), width, score + i * stride,
                      stride);
  }
}

}  // namespace

void CpuKernels::attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, int heads) {
  visit_format(qkv.dtype(), products_, [&]<class F>() {
    using T = Real<F>;
    const std::int64_t length = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    const std::int64_t size = query_block(length), group = size * kGroupBlocks, groups = ceil_div(length, group);
    const std::int64_t jobs = out.dim(0) * heads;
    const Tensor scratch = Tensor::empty({thread_count(), size * padded<T>(length)}, qkv.dtype(), qkv.device());
    // The groups with most keys first, so that no thread is left with a long one at the end.
    parallel_for(jobs * groups, 1, [&](std::int64_t unit, std::int64_t) {
      const std::int64_t job = unit % jobs, begin = (groups - 1 - unit / jobs) * group, b = job / heads,
                         h = job % heads;
      const T* const q = qkv.data<T>() + b * length * wide + h * width;
      const Forward<T> head{{out.data<T>() + b * length * channels + h * width, channels},
                            lse.data<T>() + job * length,
                            {q, wide},
                            {q + channels, wide},
                            {q + 2 * channels, wide}};
      attend<F>(head, {begin, std::min(begin + group, length), width}, size,
                scratch.data<T>() + thread_index() * scratch.dim(1));
    });
  });
}

void CpuKernels::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                                  Scalar<std::int64_t> place, int heads) {
  const std::int64_t past = place.get();
  visit_format(qkv.dtype(), products_, [&]<class F>() {
    using T = Real<F>;
    const std::int64_t fresh = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    const std::int64_t capacity = keys.dim(2), jobs = out.dim(0) * heads, length = past + fresh;
    const std::int64_t size = query_block(fresh), group = size * kGroupBlocks, groups = ceil_div(fresh, group);
    const Tensor scratch =
        Tensor::empty({thread_count(), std::min(size, fresh) * padded<T>(length)}, qkv.dtype(), qkv.device());
    const auto append = [&](std::int64_t job) {
      const T* k = qkv.data<T>() + job / heads * fresh * wide + job % heads * width + channels;
      const std::int64_t to = (job * capacity + past) * width;
      for (std::int64_t t = 0; t < fresh; ++t, k += wide) {
        std::copy_n(k, width, keys.data<T>() + to + t * width);
        std::copy_n(k + channels, width, values.data<T>() + to + t * width);
      }
    };
    const auto answer = [&](std::int64_t job, std::int64_t unit) {
      const std::int64_t b = job / heads, h = job % heads, begin = past + unit * group;
      const std::int64_t at = job * capacity * width;
      const Forward<T> head{{out.data<T>() + b * fresh * channels + h * width, channels, past},
                            nullptr,
                            {qkv.data<T>() + b * fresh * wide + h * width, wide, past},
                            {keys.data<T>() + at, width},
                            {values.data<T>() + at, width}};
      attend<F>(head, {begin, std::min(begin + group, length), width}, size,
                scratch.data<T>() + thread_index() * scratch.dim(1));
    };
    parallel_for(jobs, 1, [&](std::int64_t job, std::int64_t) {
      append(job);
      if (groups == 1) answer(job, 0);
    });
    if (groups > 1)
      parallel_for(jobs * groups, 1,
                   [&](std::int64_t unit, std::int64_t) { answer(unit % jobs, groups - 1 - unit / jobs); });
  });
}

}  // namespace grt::cpu
