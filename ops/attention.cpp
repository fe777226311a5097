// Causal self-attention, over a whole sequence and over a key/value cache.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {
namespace {

void check_heads(const Var& qkv, int heads) {
  const Shape& s = qkv.shape();
  check(s.rank() == 3 && heads > 0 && s.last() % (3 * heads) == 0,
        "attention: qkv must be (B, T, 3C) with C a multiple of {} heads, not {}", heads, s);
}

void check_not_recorded(const Var& qkv) {
  check(!recorded({qkv}), "attention: a key/value cache serves inference; it cannot be recorded on a tape");
}

}  // namespace

// Per head, with S = q k^T / sqrt(D), P = softmax(S + mask) = exp(S - lse), out = P v:
//   dv = P^T dout,   dP = dout v^T,   dS = P * (dP - rowsum(dout * out)),
//   dq = dS k / sqrt(D),   dk = dS^T q / sqrt(D).
// P is computed again from lse, block by block. Source: Dao et al. 2022, arXiv:2205.14135, appendix B.
Var attention(const Var& qkv, int heads) {
  check_heads(qkv, heads);
  const std::int64_t batch = qkv.shape()[0], time = qkv.shape()[1];
  const Tensor out = Tensor::empty({batch, time, qkv.shape().last() / 3}, qkv.value().dtype(), qkv.device());
  const Tensor lse = Tensor::empty({batch, heads, time}, qkv.value().dtype(), qkv.device());
  Kernels& k = qkv.kernels();
  k.attention(out, lse, qkv.value(), heads);
  return record("attention", out, {qkv},
                [&k, dqkv = qkv.sink(), qkv = qkv.value(), out, lse, heads](const Tensor& dout) {
                  k.attention_backward(dqkv.into(), dout, qkv, out, lse, heads);
                });
}

Var attention(const Var& qkv, int heads, const Tensor& keys, const Tensor& values, Scalar<std::int64_t> past) {
  check_heads(qkv, heads);
  check_not_recorded(qkv);
  const std::int64_t batch = qkv.shape()[0], fresh = qkv.shape()[1], channels = qkv.shape().last() / 3;
  const std::int64_t capacity = keys.dim(2), before = past.known();
  const Shape cache{batch, heads, capacity, channels / heads};
  check(keys.shape() == cache && values.shape() == cache,
        "attention: qkv is {}, so the cache must be {}, not {} and {}", qkv.shape(), cache, keys.shape(),
        values.shape());
  check_alike("attention", qkv.value(), keys, values);
  check(before >= 0 && before + fresh <= capacity, "attention: {} + {} tokens do not fit into a cache of {}", before,
        fresh, capacity);
  const Tensor out = Tensor::empty({batch, fresh, channels}, qkv.value().dtype(), qkv.device());
  qkv.kernels().attention_cached(out, keys, values, qkv.value(), past, heads);
  return out;
}

// Sequences side by side that have come equally far are one call of the kernel; else each run is.
Var attention(const Var& qkv, int heads, const Tensor& keys, const Tensor& values, std::span<const TokenRun> runs) {
  check_not_recorded(qkv);
  const Shape shape = qkv.shape();
  std::int64_t rows = 0, sequences = 0;
  bool level = true;
  for (const TokenRun& run : runs) {
    check(0 <= run.sequence && run.sequence < keys.dim(0), "attention: sequence {} of a cache of {}", run.sequence,
          keys.dim(0));
    rows += run.count;
    level = level && run.sequence == sequences++ && run.past == runs[0].past && run.count == runs[0].count;
  }
  check(rows == shape.rows() && rows > 0, "attention: qkv is {}, but the runs have {} tokens", shape, rows);
  if (level && sequences == keys.dim(0))
    return attention(qkv.view({sequences, runs[0].count, shape.last()}), heads, keys, values, runs[0].first())
        .view(shape.with_last(shape.last() / 3));

  const Tensor out = Tensor::empty(shape.with_last(shape.last() / 3), qkv.value().dtype(), qkv.device());
  const Shape one{1, keys.dim(1), keys.dim(2), keys.dim(3)};
  std::int64_t row = 0;
  for (const TokenRun& run : runs) {
    const Tensor part = qkv.value().range(row * shape.last(), {1, run.count, shape.last()});
    const auto of_sequence = [&](const Tensor& cache) { return cache.range(run.sequence * one.numel(), one); };
    const Var mixed = attention(Var(part), heads, of_sequence(keys), of_sequence(values), run.first());
    out.device().copy(out.rows(row, run.count).raw(), mixed.value().raw(), mixed.value().bytes());
    row += run.count;
  }
  return out;
}

}  // namespace grt
