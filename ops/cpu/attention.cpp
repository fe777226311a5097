// Causal attention on blocks of queries. A block's scores against all keys up to its last query lie in scratch memory
// (rows complete, so softmax needs no second pass); nothing of size T x T over all heads ever exists.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

constexpr std::int64_t kFewQueries = 4;  // up to here a product on packed panels does not pay

// Rows of one head: `data` is the first element of the row at position `first`, rows are `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride, first = 0;
  T* at(std::int64_t position) const { return data + (position - first) * stride; }
  Strided<std::remove_const_t<T>> from(std::int64_t position) const { return {at(position), stride, 1}; }
  Strided<std::remove_const_t<T>> transposed() const { return {data, 1, stride}; }
};

// Queries begin..end-1 of one head, of `width` elements each.
struct Block {
  std::int64_t begin, end, width;
  std::int64_t count() const { return end - begin; }
};

constexpr std::int64_t kLargestBlock = 128;
std::int64_t query_block(std::int64_t length) { return length >= 512 ? kLargestBlock : 64; }
std::int64_t blocks_of(std::int64_t length) { return (length + query_block(length) - 1) / query_block(length); }
template <class T>
std::int64_t padded(std::int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Replaces n scores by exp(scale score - top) and the rest up to the end of `length` by 0. Returns top + log(sum) and
// 1 / sum. The row is padded to whole vectors.
template <class T>
struct Softmax {
  T lse, inverse;
};
template <class T>
Softmax<T> softmax_row(T* score, std::int64_t n, std::int64_t length, T scale) {
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
  std::fill(score + n, score + std::max(length, padded<T>(n)), T(0));
  const T total = sum_of<T>(sum);
  return {top + std::log(total), 1 / total};
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  Vec<T> sum{};
  for_vectors<T>(n, [&](std::int64_t i, int count) { sum += load_part(a + i, count) * load_part(b + i, count); });
  return sum_of<T>(sum);
}

// to += f from
template <class T>
void add_scaled(T* to, T f, const T* from, std::int64_t n) {
  for_vectors<T>(n, [&](std::int64_t i, int count) {
    store_part(to + i, load_part(to + i, count) + f * load_part(from + i, count), count);
  });
}

// The scores of a block against keys 0..end-1, `stride` elements from row to row.
template <class T>
void scores(T* score, std::int64_t stride, Rows<const T> a, Rows<const T> b, const Block& block) {
  gemm_serial<T>(block.count(), block.end, block.width, a.from(block.begin), b.transposed(), score, stride, false);
}

// out = softmax(scale q k^T) v, causal. k and v begin at position 0. lse may be null.
template <class T>
void attend(Rows<T> out, T* lse, Rows<const T> q, Rows<const T> k, Rows<const T> v, const Block& block, T* score) {
  const std::int64_t stride = padded<T>(block.end), width = block.width;
  const T scale = 1 / std::sqrt(T(width));
  const bool few = block.count() <= kFewQueries;
  if (!few) scores(score, stride, q, k, block);
  T inverse[kLargestBlock];
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    T* const row = score + (i - block.begin) * stride;
    if (few)
      for (std::int64_t j = 0; j <= i; ++j) row[j] = dot(q.at(i), k.at(j), width);
    const Softmax<T> s = softmax_row(row, i + 1, block.end, scale);
    inverse[i - block.begin] = s.inverse;
    if (lse) lse[i] = s.lse;
  }
  if (!few)
    gemm_serial<T>(block.count(), width, block.end, {score, stride, 1}, v.from(0), out.at(block.begin), out.stride,
                   false);
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    T* const to = out.at(i);
    if (few) {
      std::fill_n(to, width, T(0));
      for (std::int64_t j = 0; j <= i; ++j) add_scaled(to, score[(i - block.begin) * stride + j], v.at(j), width);
    }
    for (std::int64_t c = 0; c < width; ++c) to[c] *= inverse[i - block.begin];
  }
}

// One head of one sequence, for backward.
template <class T>
struct Head {
  Rows<const T> q, k, v, out, dout;
  Rows<T> dq, dk, dv;
  const T* lse;
  bool add;
};

// A block's contribution. With P = exp(scale q k^T - lse), delta = sum of dout * out over a query's row:
//   dv += P^T dout,  dS = scale P (dout v^T - delta),  dq = dS k,  dk += dS^T q.
template <class T>
void attend_backward(const Head<T>& head, const Block& block, bool add, T* weight, T* dscore) {
  const std::int64_t n = block.end, stride = padded<T>(n), width = block.width;
  const T scale = 1 / std::sqrt(T(width));
  scores(weight, stride, head.q, head.k, block);
  scores(dscore, stride, head.dout, head.v, block);
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    T *const p = weight + (i - block.begin) * stride, *const ds = dscore + (i - block.begin) * stride;
    const T delta = dot(head.dout.at(i), head.out.at(i), width), lse = head.lse[i];
    std::fill(p + i + 1, p + padded<T>(i + 1), -std::numeric_limits<T>::infinity());
    std::fill(ds + i + 1, ds + stride, T(0));
    for (std::int64_t j = 0; j <= i; j += kLanes<T>) {
      const Vec<T> e = exp(load(p + j) * scale - lse);
      store(p + j, e);
      store(ds + j, scale * e * (load(ds + j) - delta));
    }
    std::fill(p + i + 1, p + stride, T(0));
  }
  const std::int64_t m = block.count();
  gemm_serial<T>(m, width, n, {dscore, stride, 1}, head.k.from(0), head.dq.at(block.begin), head.dq.stride, head.add);
  gemm_serial<T>(n, width, m, {dscore, 1, stride}, head.q.from(block.begin), head.dk.data, head.dk.stride, add);
  gemm_serial<T>(n, width, m, {weight, 1, stride}, head.dout.from(block.begin), head.dv.data, head.dv.stride, add);
}

}  // namespace

void CpuKernels::attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, int heads) {
  visit_real(qkv.dtype(), [&]<class T>() {
    const std::int64_t length = out.dim(1), channels = out.dim(2), width = channels / heads;
    const std::int64_t size = query_block(length), blocks = blocks_of(length), jobs = out.dim(0) * heads;
    const Tensor scratch = Tensor::empty({thread_count(), size * padded<T>(length)}, qkv.dtype(), qkv.device());
    // The blocks with most keys first, so that no thread is left with a long one at the end.
    parallel_for(jobs * blocks, 1, [&](std::int64_t unit, std::int64_t) {
      const std::int64_t job = unit % jobs, begin = (blocks - 1 - unit / jobs) * size, b = job / heads, h = job % heads;
      const T* const q = qkv.data<T>() + b * length * 3 * channels + h * width;
      const Rows<T> to{out.data<T>() + b * length * channels + h * width, channels};
      attend<T>(to, lse.data<T>() + job * length, {q, 3 * channels}, {q + channels, 3 * channels},
                {q + 2 * channels, 3 * channels}, {begin, std::min(begin + size, length), width},
                scratch.data<T>() + thread_index() * scratch.dim(1));
    });
  });
}

void CpuKernels::attention_backward(const Into& dqkv, const Tensor& dout, const Tensor& qkv, const Tensor& out,
                                    const Tensor& lse, int heads) {
  if (!dqkv) return;
  visit_real(qkv.dtype(), [&]<class T>() {
    const std::int64_t length = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    const std::int64_t size = query_block(length), room = size * padded<T>(length);
    const Tensor scratch = Tensor::empty({thread_count(), 2 * room}, qkv.dtype(), qkv.device());
    parallel_for(out.dim(0) * heads, 1, [&](std::int64_t job, std::int64_t) {
      const std::int64_t b = job / heads, h = job % heads;
      const std::int64_t at = b * length * channels + h * width, wide_at = b * length * wide + h * width;
      const T* const q = qkv.data<T>() + wide_at;
      T* const dq = dqkv.to.data<T>() + wide_at;
      const Head<T> head{{q, wide},
                         {q + channels, wide},
                         {q + 2 * channels, wide},
                         {out.data<T>() + at, channels},
                         {dout.data<T>() + at, channels},
                         {dq, wide},
                         {dq + channels, wide},
                         {dq + 2 * channels, wide},
                         lse.data<T>() + job * length,
                         dqkv.add};
      T* const weight = scratch.data<T>() + thread_index() * 2 * room;
      // The last block meets every key, so it can set dk and dv; the others add to them.
      for (std::int64_t block = blocks_of(length) - 1, last = block; block >= 0; --block)
        attend_backward<T>(head, {block * size, std::min((block + 1) * size, length), width}, dqkv.add || block != last,
                           weight, weight + room);
    });
  });
}

void CpuKernels::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                                  std::int64_t past, int heads) {
  visit_real(qkv.dtype(), [&]<class T>() {
    const std::int64_t fresh = out.dim(1), channels = out.dim(2), width = channels / heads, wide = 3 * channels;
    const std::int64_t capacity = keys.dim(2), jobs = out.dim(0) * heads, length = past + fresh;
    const std::int64_t size = query_block(fresh), blocks = blocks_of(fresh);
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
    const auto answer = [&](std::int64_t job, std::int64_t block) {
      const std::int64_t b = job / heads, h = job % heads, begin = past + block * size;
      const Rows<const T> q{qkv.data<T>() + b * fresh * wide + h * width, wide, past};
      const Rows<T> to{out.data<T>() + b * fresh * channels + h * width, channels, past};
      const std::int64_t at = job * capacity * width;
      attend<T>(to, nullptr, q, {keys.data<T>() + at, width}, {values.data<T>() + at, width},
                {begin, std::min(begin + size, length), width}, scratch.data<T>() + thread_index() * scratch.dim(1));
    };
    parallel_for(jobs, 1, [&](std::int64_t job, std::int64_t) {
      append(job);
      if (blocks == 1) answer(job, 0);
    });
    if (blocks > 1)
      parallel_for(jobs * blocks, 1,
                   [&](std::int64_t unit, std::int64_t) { answer(unit % jobs, blocks - 1 - unit / jobs); });
  });
}

}  // namespace grt::cpu
