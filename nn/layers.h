// Layers: a few parameters and the call that uses them. No base class, nothing virtual; sharing weights is calling the
// same object again.
#pragma once

#include "nn/cache.h"
#include "nn/params.h"
#include "ops/ops.h"

namespace grt {

inline Var value_of(const Param* p) { return p ? p->var : Var(); }

// What is added to a Linear's W x: scale B (A x), of a rank far below the width. Default-constructed: nothing, and
// tests false. Source: Hu et al. 2021, "LoRA", arXiv:2106.09685.
struct LowRank {
  const Param *a = nullptr, *b = nullptr;  // (rank, in), (out, rank)
  float scale = 1;

  LowRank() = default;
  LowRank(const Scope& s, std::int64_t in, std::int64_t out, std::int64_t rank, float scale)
      : a(s("A", {rank, in}, {})), b(s("B", {out, rank}, kZeros)), scale(scale) {}
  explicit operator bool() const { return a != nullptr; }
  Var operator()(const Var& x, const Var& plus) const {
    return linear_columns(grt::scale(linear(x, a->var), scale), b->var, 0, plus);
  }
};

struct Linear {  // (..., in) -> (..., out)
  const Param *weight, *bias = nullptr;

  Linear(const Scope& s, std::int64_t in, std::int64_t out, bool with_bias, Init w = {}, Init b = kZeros)
      : weight(s("weight", {out, in}, w)), bias(with_bias ? s("bias", {out}, b) : nullptr) {}
  Var operator()(const Var& x, const LowRank& own = {}) const {
    const Var y = linear(x, weight->var, value_of(bias));
    return own ? own(x, y) : y;
  }
};

// W [a ; b] without the concatenation: W[:, :d] a + W[:, d:] b, each of width d. Where b stays the same over many
// calls, fix(b) does its half once.
struct PairLinear {
  const Param* weight;

  PairLinear(const Scope& s, std::int64_t width, std::int64_t out) : weight(s("weight", {out, 2 * width}, {})) {}
  Var fix(const Var& b) const { return linear_columns(b, weight->var, b.shape().last()); }
  Var operator()(const Var& a, const Var& fixed) const { return linear_columns(a, weight->var, 0, fixed); }
  Var whole(const Var& ab) const { return linear(ab, weight->var); }  // of a concatenation that exists
};

struct LayerNorm {  // over the last extent
  const Param *weight, *bias = nullptr;

  LayerNorm(const Scope& s, std::int64_t width, bool with_bias)
      : weight(s("weight", {width}, kOnes)), bias(with_bias ? s("bias", {width}, kZeros) : nullptr) {}
  Var operator()(const Var& x) const { return layernorm(x, weight->var, value_of(bias)); }
  SumAndNorm of_sum(const Var& x, const Var& y) const { return add_layernorm(x, y, weight->var, value_of(bias)); }
};

}  // namespace grt
