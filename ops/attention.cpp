// Causal self-attention, over a whole sequence and over a key/value cache.
#include "ops/ops.h"

namespace grt {
namespace {

void check_heads(const Var& qkv, int heads) {
  const Shape& s = qkv.shape();
  check(s.rank() == 3 && heads > 0 && s.last() % (3 * heads) == 0,
        "attention: qkv must be (B, T, 3C) with C a multiple of {} heads, not {}", heads, s);
}

}  // namespace

// Per head, with S = q k^T / sqrt(D), P = softmax(S + mask) = exp(S - lse), out = P v:
//   dv = P^T dout,   dP = dout v^T,   dS = P * (dP - rowsum(dout * out)),   dq = dS k / sqrt(D),   dk = dS^T q /
//   sqrt(D).
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

Var attention(const Var& qkv, int heads, const Tensor& keys, const Tensor& values, std::int64_t past) {
  check_heads(qkv, heads);
  check(!recorded({qkv}), "attention: a key/value cache serves inference; it cannot be recorded on a tape");
  const std::int64_t batch = qkv.shape()[0], fresh = qkv.shape()[1], channels = qkv.shape().last() / 3;
  const std::int64_t capacity = keys.dim(2);
  const Shape cache{batch, heads, capacity, channels / heads};
  check(keys.shape() == cache && values.shape() == cache,
        "attention: qkv is {}, so the cache must be {}, not {} and {}", qkv.shape(), cache, keys.shape(),
        values.shape());
  check(past >= 0 && past + fresh <= capacity, "attention: {} + {} tokens do not fit into a cache of {}", past, fresh,
        capacity);
  const Tensor out = Tensor::empty({batch, fresh, channels}, qkv.value().dtype(), qkv.device());
  qkv.kernels().attention_cached(out, keys, values, qkv.value(), past, heads);
  return out;
}

}  // namespace grt
