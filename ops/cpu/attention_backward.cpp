// The derivative of causal attention, one head at a time, on blocks of queries times blocks of keys: all that belongs
// to a pair of blocks stays in the caches, and nothing of size T x T exists.
#include <limits>
#include <utility>

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
struct Pieces {
  char* next;

  template <class T>
  T* take(std::int64_t count) {
    return reinterpret_cast<T*>(std::exchange(next, next + room<T>(count)));
  }
  template <class T>
  static std::int64_t room(std::int64_t count) {
    return ceil_div(count * static_cast<std::int64_t>(sizeof(T)), kVectorBytes) * kVectorBytes;
  }
};

// The queries and their dout in the two ways that products read them: as rows (for the scores) and, block by block, as
// what is summed over queries (for dk, dv); and the sums that softmax's derivative needs.
template <class F, class T = Real<F>>
struct PackedQueries {
  std::int64_t rows_room, columns_room;  // in elements
  Element<F>*q_rows, *dout_rows, *q_columns, *dout_columns;
  T* delta;

  explicit PackedQueries(const Head<T>& h)
      : rows_room(row_room(h.length) * elements<F>(h.width)),
        columns_room(column_room(Panels<T>(h.width)) * elements<F>(h.length)) {
    using E = Element<F>;
    const auto room = 2 * Pieces::room<E>(rows_room) + 2 * Pieces::room<E>(columns_room) + Pieces::room<T>(h.length);
    Pieces memory{head_memory.get<char>(room)};
    q_rows = memory.take<E>(rows_room);
    dout_rows = memory.take<E>(rows_room);
    q_columns = memory.take<E>(columns_room);
    dout_columns = memory.take<E>(columns_room);
    delta = memory.take<T>(h.length);
    pack_rows<F>(h.q, 0, h.length, h.width, q_rows);
    pack_rows<F>(h.dout, 0, h.length, h.width, dout_rows);
    const Panels<T> channels(h.width);
    for (std::int64_t i = 0; i < h.length; i += h.size) {
      const std::int64_t count = std::min(h.size, h.length - i);
      pack_columns<F>(channels, h.q, i, count, q_columns + columns_at(h, i));
      pack_columns<F>(channels, h.dout, i, count, dout_columns + columns_at(h, i));
    }
    for (std::int64_t i = 0; i < h.length; ++i) delta[i] = dot(h.dout.at(i), h.out.at(i), h.width);
  }
  std::int64_t rows_at(const Head<T>& h, std::int64_t query) const { return query * elements<F>(h.width); }
  std::int64_t columns_at(const Head<T>& h, std::int64_t query) const {  // of the first query of a block
    return column_room(Panels<T>(h.width)) * elements<F>(query);
  }
};

// A block of keys and its values: as columns (for the scores) and, the keys, as what is summed over keys (for dq).
template <class F, class T = Real<F>>
struct PackedKeys {
  std::int64_t begin, count;
  Panels<T> columns;
  Element<F>*k_columns, *v_columns, *k_rows;

  static std::int64_t room(const Head<T>& h) {
    return 2 * Pieces::room<Element<F>>(padded<T>(h.size) * elements<F>(h.width)) +
           Pieces::room<Element<F>>(column_room(Panels<T>(h.width)) * elements<F>(h.size));
  }
  PackedKeys(const Head<T>& h, std::int64_t begin, Pieces& memory)
      : begin(begin), count(std::min(h.size, h.length - begin)), columns(count) {
    const Panels<T> channels(h.width);
    k_columns = memory.take<Element<F>>(column_room(columns) * elements<F>(h.width));
    v_columns = memory.take<Element<F>>(column_room(columns) * elements<F>(h.width));
    k_rows = memory.take<Element<F>>(column_room(channels) * elements<F>(count));
    pack_transposed_columns<F>(columns, h.k, begin, h.width, k_columns);
    pack_transposed_columns<F>(columns, h.v, begin, h.width, v_columns);
    pack_columns<F>(channels, h.k, begin, count, k_rows);
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
template <class F, class T = Real<F>>
void add_to_keys(Rows<T> to, bool add, const PackedKeys<F>& keys, const Block& queries, const T* weights,
                 std::int64_t stride, const Element<F>* columns, Element<F>* packed) {
  const Panels<T> channels(queries.width);
  for (std::int64_t key = 0; key < keys.count; key += kRows) {
    const std::int64_t first = std::max<std::int64_t>(0, keys.begin + key - queries.begin);
    const std::int64_t depth = queries.count() - first, rows = std::min<std::int64_t>(kRows, keys.count - key);
    if (depth <= 0) return;
    pack<F, kRows>(weights + first * stride + key, 1, stride, static_cast<int>(rows), depth, packed);
    for (std::int64_t p = 0; p < channels.count; ++p) {
      const std::int64_t channel = channels.begin(p);
      multiply_panel<F>(channels, p, depth, packed,
                        columns + channel * elements<F>(queries.count()) + elements<F>(first) * channels.width(p), rows,
                        Output<T>{to.at(keys.begin + key) + channel, to.stride, add, nullptr});
    }
  }
}

// dq += dS k over a block's keys.
template <class F, class T = Real<F>>
void add_to_queries(const Head<T>& h, const PackedKeys<F>& keys, const Block& queries, const T* ds, std::int64_t stride,
                    Element<F>* packed) {
  const Panels<T> channels(h.width);
  for (std::int64_t i = 0; i < queries.count(); i += kRows) {
    const std::int64_t rows = std::min<std::int64_t>(kRows, queries.count() - i);
    const std::int64_t depth = std::min(keys.count, queries.begin + i + rows - keys.begin);
    pack<F, kRows>(ds + i * stride, stride, 1, static_cast<int>(rows), depth, packed);
    for (std::int64_t p = 0; p < channels.count; ++p) {
      const std::int64_t channel = channels.begin(p);
      multiply_panel<F>(channels, p, depth, packed, keys.k_rows + channel * elements<F>(keys.count), rows,
                        Output<T>{h.dq.at(queries.begin + i) + channel, h.dq.stride, h.add || keys.begin > 0, nullptr});
    }
  }
}

// With P = exp(scale q k^T - lse), delta = sum of dout * out over a query's row:
//   dv += P^T dout,  dS = scale P (dout v^T - delta),  dq += dS k,  dk += dS^T q.
template <class F, class T = Real<F>>
void add_pair(const Head<T>& h, const PackedQueries<F>& packed, const PackedKeys<F>& keys, const Block& queries,
              Pieces memory) {
  const std::int64_t stride = padded<T>(keys.count), rows = packed.rows_at(h, queries.begin);
  T* const weight = memory.take<T>(h.size * stride);
  T* const dscore = memory.take<T>(h.size * stride);
  auto* const panel = memory.take<Element<F>>(kRows * elements<F>(h.size));
  causal_scores<F>(keys.columns, keys.k_columns, keys.begin, packed.q_rows + rows, queries.begin, queries.count(),
                   h.width, weight, stride);
  causal_scores<F>(keys.columns, keys.v_columns, keys.begin, packed.dout_rows + rows, queries.begin, queries.count(),
                   h.width, dscore, stride);
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    const std::int64_t row = (i - queries.begin) * stride;
    softmax_backward(weight + row, dscore + row, std::min(keys.count, i + 1 - keys.begin), stride, h.lse[i],
                     packed.delta[i], 1 / std::sqrt(T(h.width)));
  }
  const bool add = h.add || queries.begin > keys.begin;
  const std::int64_t columns = packed.columns_at(h, queries.begin);
  add_to_keys<F>(h.dv, add, keys, queries, weight, stride, packed.dout_columns + columns, panel);
  add_to_keys<F>(h.dk, add, keys, queries, dscore, stride, packed.q_columns + columns, panel);
  add_to_queries<F>(h, keys, queries, dscore, stride, panel);
}

template <class F, class T = Real<F>>
void attend_backward(const Head<T>& h) {
  const PackedQueries<F> packed(h);
  const std::int64_t pair_room =
      2 * Pieces::room<T>(h.size * padded<T>(h.size)) + Pieces::room<Element<F>>(kRows * elements<F>(h.size));
  for (std::int64_t key = 0; key < h.length; key += h.size) {
    Pieces memory{pair_memory.get<char>(PackedKeys<F>::room(h) + pair_room)};
    const PackedKeys<F> keys(h, key, memory);
    for (std::int64_t i = key; i < h.length; i += h.size)
      add_pair<F>(h, packed, keys, {i, std::min(i + h.size, h.length), h.width}, memory);
  }
}

}  // namespace

void CpuKernels::attention_backward(const Into& dqkv, const Tensor& dout, const Tensor& qkv, const Tensor& out,
                                    const Tensor& lse, int heads) {
  if (!dqkv) return;
  visit_format(qkv.dtype(), products_, [&]<class F>() {
    using T = Real<F>;
    const std::int64_t length = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    parallel_for(out.dim(0) * heads, 1, [&](std::int64_t job, std::int64_t) {
      const std::int64_t b = job / heads, h = job % heads;
      const std::int64_t at = b * length * channels + h * width, wide_at = b * length * wide + h * width;
      const T* const q = qkv.data<T>() + wide_at;
      T* const dq = dqkv.to.data<T>() + wide_at;
      attend_backward<F>(Head<T>{.q = {q, wide},
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
