// The derivative of causal attention, one head at a time, on blocks of queries times blocks of keys: all that belongs
// to a pair of blocks stays in the caches, and nothing of size T x T exists.
#include "core/threads.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

thread_local Scratch head_memory, pair_memory;

// One head of one sequence.
template <class T>
struct Head {
  Rows<const T> q, k, v, out, dout;
  Rows<T> dq, dk, dv;
  const T* lse;
  bool add;
  std::int64_t length, width, size;  // size: of a block
};

// Memory that is cut into pieces of whole vectors.
template <class T>
struct Pieces {
  T* next;
  T* take(std::int64_t count) { return std::exchange(next, next + padded<T>(count)); }
};

// The queries and their dout in the three ways that products read them: as rows (for the scores), as what is summed
// over queries (for dk, dv; block by block), and the sums that softmax's derivative needs.
template <class T>
struct PackedQueries {
  T *q_rows, *dout_rows, *q_columns, *dout_columns, *delta;

  static std::int64_t room(const Head<T>& h) {
    const Panels<T> channels(h.width);
    return 2 * row_room(h.length) * h.width + 2 * column_room(channels) * h.length + h.length + 5 * kLanes<T>;
  }
  PackedQueries(const Head<T>& h, Pieces<T> memory) {
    const Panels<T> channels(h.width);
    q_rows = memory.take(row_room(h.length) * h.width);
    dout_rows = memory.take(row_room(h.length) * h.width);
    q_columns = memory.take(column_room(channels) * h.length);
    dout_columns = memory.take(column_room(channels) * h.length);
    delta = memory.take(h.length);
    pack_rows(h.q, 0, h.length, h.width, q_rows);
    pack_rows(h.dout, 0, h.length, h.width, dout_rows);
    for (std::int64_t i = 0; i < h.length; i += h.size) {
      const std::int64_t count = std::min(h.size, h.length - i);
      pack_columns(channels, h.q, i, count, q_columns + i * column_room(channels));
      pack_columns(channels, h.dout, i, count, dout_columns + i * column_room(channels));
    }
    for (std::int64_t i = 0; i < h.length; ++i) delta[i] = dot(h.dout.at(i), h.out.at(i), h.width);
  }
};

// A block of keys and its values: as columns (for the scores) and, the keys, as what is summed over keys (for dq).
template <class T>
struct PackedKeys {
  std::int64_t begin, count;
  Panels<T> columns;
  T *k_columns, *v_columns, *k_rows;

  static std::int64_t room(const Head<T>& h) {
    return (2 * h.width + column_room(Panels<T>(h.width))) * padded<T>(h.size) + 3 * kLanes<T>;
  }
  PackedKeys(const Head<T>& h, std::int64_t begin, Pieces<T>& memory)
      : begin(begin), count(std::min(h.size, h.length - begin)), columns(count) {
    const Panels<T> channels(h.width);
    k_columns = memory.take(column_room(columns) * h.width);
    v_columns = memory.take(column_room(columns) * h.width);
    k_rows = memory.take(column_room(channels) * count);
    pack_transposed_columns(columns, h.k, begin, h.width, k_columns);
    pack_transposed_columns(columns, h.v, begin, h.width, v_columns);
    pack_columns(channels, h.k, begin, count, k_rows);
  }
};

// From scores s = q k^T and dp = dout v^T of one row, of which n are not masked, to P and dS; zeros up to `end`.
template <class T>
void softmax_backward(T* s, T* dp, std::int64_t n, std::int64_t end, T lse, T delta, T scale) {
  std::fill(s + n, s + padded<T>(n), -std::numeric_limits<T>::infinity());
  std::fill(dp + n, dp + padded<T>(n), T(0));
  for (std::int64_t j = 0; j < n; j += kLanes<T>) {
    const Vec<T> p = exp(load(s + j) * scale - lse);
    store(s + j, p);
    store(dp + j, scale * p * (load(dp + j) - delta));
  }
  if (end <= padded<T>(n)) return;
  std::fill(s + padded<T>(n), s + end, T(0));
  std::fill(dp + padded<T>(n), dp + end, T(0));
}

// to += weights^T columns over a block's queries: rows of `to` are keys. Queries before a key do not see it.
template <class T>
void add_to_keys(Rows<T> to, bool add, const PackedKeys<T>& keys, const Block& queries, const T* weights,
                 std::int64_t stride, const T* columns, T* packed) {
  const Panels<T> channels(queries.width);
  for (std::int64_t key = 0; key < keys.count; key += kRows) {
    const std::int64_t first = std::max<std::int64_t>(0, keys.begin + key - queries.begin),
                       steps = queries.count() - first;
    const std::int64_t rows = std::min<std::int64_t>(kRows, keys.count - key);
    if (steps <= 0) return;
    pack<T, kRows>(weights + first * stride + key, 1, stride, static_cast<int>(rows), steps, packed);
    for (std::int64_t p = 0; p < channels.count; ++p) {
      const std::int64_t channel = channels.begin(p);
      multiply_panel(channels, p, steps, packed, columns + channel * queries.count() + first * channels.width(p), rows,
                     Output<T>{to.at(keys.begin + key) + channel, to.stride, add, nullptr});
    }
  }
}

// dq += dS k over a block's keys.
template <class T>
void add_to_queries(const Head<T>& h, const PackedKeys<T>& keys, const Block& queries, const T* ds, std::int64_t stride,
                    T* packed) {
  const Panels<T> channels(h.width);
  for (std::int64_t i = 0; i < queries.count(); i += kRows) {
    const std::int64_t rows = std::min<std::int64_t>(kRows, queries.count() - i);
    const std::int64_t steps = std::min(keys.count, queries.begin + i + rows - keys.begin);
    pack<T, kRows>(ds + i * stride, stride, 1, static_cast<int>(rows), steps, packed);
    for (std::int64_t p = 0; p < channels.count; ++p) {
      const std::int64_t channel = channels.begin(p);
      multiply_panel(channels, p, steps, packed, keys.k_rows + channel * keys.count, rows,
                     Output<T>{h.dq.at(queries.begin + i) + channel, h.dq.stride, h.add || keys.begin > 0, nullptr});
    }
  }
}

// With P = exp(scale q k^T - lse), delta = sum of dout * out over a query's row:
//   dv += P^T dout,  dS = scale P (dout v^T - delta),  dq += dS k,  dk += dS^T q.
template <class T>
void add_pair(const Head<T>& h, const PackedQueries<T>& packed, const PackedKeys<T>& keys, const Block& queries,
              Pieces<T> memory) {
  const std::int64_t stride = padded<T>(keys.count), room = column_room(Panels<T>(h.width));
  T* const weight = memory.take(h.size * stride);
  T* const dscore = memory.take(h.size * stride);
  T* const panel = memory.take(kRows * h.size);
  const std::int64_t at = queries.begin * h.width;
  causal_scores(keys.columns, keys.k_columns, keys.begin, packed.q_rows + at, queries.begin, queries.count(), h.width,
                weight, stride);
  causal_scores(keys.columns, keys.v_columns, keys.begin, packed.dout_rows + at, queries.begin, queries.count(),
                h.width, dscore, stride);
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    const std::int64_t row = (i - queries.begin) * stride;
    softmax_backward(weight + row, dscore + row, std::min(keys.count, i + 1 - keys.begin), stride, h.lse[i],
                     packed.delta[i], 1 / std::sqrt(T(h.width)));
  }
  const bool add = h.add || queries.begin > keys.begin;
  add_to_keys(h.dv, add, keys, queries, weight, stride, packed.dout_columns + queries.begin * room, panel);
  add_to_keys(h.dk, add, keys, queries, dscore, stride, packed.q_columns + queries.begin * room, panel);
  add_to_queries(h, keys, queries, dscore, stride, panel);
}

template <class T>
void attend_backward(const Head<T>& h) {
  const PackedQueries<T> packed(h, {head_memory.get<T>(PackedQueries<T>::room(h))});
  const std::int64_t pair_room = (2 * h.size + kRows) * padded<T>(h.size) + 3 * kLanes<T>;
  for (std::int64_t key = 0; key < h.length; key += h.size) {
    Pieces<T> memory{pair_memory.get<T>(PackedKeys<T>::room(h) + pair_room)};
    const PackedKeys<T> keys(h, key, memory);
    for (std::int64_t i = key; i < h.length; i += h.size)
      add_pair(h, packed, keys, {i, std::min(i + h.size, h.length), h.width}, memory);
  }
}

}  // namespace

void CpuKernels::attention_backward(const Into& dqkv, const Tensor& dout, const Tensor& qkv, const Tensor& out,
                                    const Tensor& lse, int heads) {
  if (!dqkv) return;
  visit_real(qkv.dtype(), [&]<class T>() {
    const std::int64_t length = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    parallel_for(out.dim(0) * heads, 1, [&](std::int64_t job, std::int64_t) {
      const std::int64_t b = job / heads, h = job % heads;
      const std::int64_t at = b * length * channels + h * width, wide_at = b * length * wide + h * width;
      const T* const q = qkv.data<T>() + wide_at;
      T* const dq = dqkv.to.data<T>() + wide_at;
      attend_backward(Head<T>{.q = {q, wide},
                              .k = {q + channels, wide},
                              .v = {q + 2 * channels, wide},
                              .out = {out.data<T>() + at, channels},
                              .dout = {dout.data<T>() + at, channels},
                              .dq = {dq, wide},
                              .dk = {dq + channels, wide},
                              .dv = {dq + 2 * channels, wide},
                              .lse = lse.data<T>() + job * length,
                              .add = dqkv.add,
                              .length = length,
                              .width = width,
                              .size = query_block(length)});
    });
  });
}

}  // namespace grt::cpu
