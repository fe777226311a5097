// Layers: a few parameters and the call that uses them. No base class, nothing virtual; sharing weights is calling the
// same object again.
#pragma once

#include "nn/cache.h"
#include "nn/params.h"
#include "ops/ops.h"

namespace grt {

inline Var value_of(const Param* p) { return p ? p->var : Var(); }

struct Linear {  // (..., in) -> (..., out)
  const Param *weight, *bias = nullptr;

  Linear(const Scope& s, std::int64_t in, std::int64_t out, bool with_bias, Init w = {}, Init b = kZeros)
      : weight(s("weight", {out, in}, w)), bias(with_bias ? s("bias", {out}, b) : nullptr) {}
  Var operator()(const Var& x) const { return linear(x, weight->var, value_of(bias)); }
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
};

}  // namespace grt
