// Differentiable operations. Each checks its arguments, computes, and records its derivative; the derivation stands
// above its definition. Shapes: B batch, T time, C channels, H heads, V vocabulary, R rows (all extents but the last).
// Every operation throws Error naming itself and the shapes that do not fit.
#pragma once

#include "autograd/tape.h"
#include "ops/kernels.h"

namespace grt {

// --- elementwise.cpp ---

Var operator+(const Var& a, const Var& b);  // same shape; there is no broadcasting
Var scale(const Var& x, float s);           // s x
Var silu(const Var& x);                     // x sigmoid(x)
Var gelu(const Var& x, Gelu kind);          // x Phi(x), or its tanh form (Hendrycks & Gimpel 2016, arXiv:1606.08415)
Var add_noise(const Var& x, float sigma, NoiseKey key);  // x + sigma N(0,1), a function of (key, element)
// Normal values of standard deviation std before they are cut at +-3 std; element (row, column) is a function of (key,
// first + row, column). A constant, of the given shape (..., C) and type.
Tensor truncated_normal(Shape shape, float std, NoiseKey key, Scalar<std::int64_t> first, DType dtype, Device& device);
Var lerp(const Var& a, const Var& b, float t);  // t a + (1 - t) b
Var concat(const Var& a, const Var& b);         // [a ; b] along the last extent: (..., A) and (..., B) -> (..., A+B)

// --- linear.cpp ---

// y (..., O) = x (..., I) w^T + b, with w (O, I) and b (O); b may be absent.
Var linear(const Var& x, const Var& w, const Var& b = {});

// A product with some columns of a weight: x (..., I) w[:, begin : begin + I]^T, + plus (..., O) if given.
// So W [x1 ; x2] = linear_columns(x1, W, 0, linear_columns(x2, W, C)): no concatenation, and the part of a fixed x2 is
// computed once.
Var linear_columns(const Var& x, const Var& w, std::int64_t begin, const Var& plus = {});

// --- norm.cpp ---

// (x - mean) / sqrt(var + eps) * w + b over the last extent C. x (..., C), w (C), b (C) or absent.
// Source: Ba et al. 2016, arXiv:1607.06450.
Var layernorm(const Var& x, const Var& w, const Var& b = {}, float eps = 1e-5f);

// x + y and its layernorm, in one pass over memory: where one sublayer ends and the next begins.
struct SumAndNorm {
  Var sum, normed;
};
SumAndNorm add_layernorm(const Var& x, const Var& y, const Var& w, const Var& b = {}, float eps = 1e-5f);

// --- embedding.cpp ---

// wte[tokens] + wpe[first + t]: tokens (B, T) i32 in [0, rows of wte), wte (V, C), wpe (P, C), first + T <= P.
Var embedding(const Tensor& tokens, const Var& wte, const Var& wpe, Scalar<std::int64_t> first = 0);

// --- attention.cpp ---

// Causal multi-head self-attention: qkv (B, T, 3C), q then k then v, heads contiguous inside each -> (B, T, C).
// softmax(q k^T / sqrt(C/H) + causal mask) v. Keeps the log-sum-exp of each row, never a T x T matrix of all heads.
Var attention(const Var& qkv, int heads);

// The same for n new tokens after `past` earlier ones, whose k and v it appends to keys, values (B, H, capacity, C/H).
// Inference only. qkv (B, n, 3C) -> (B, n, C). Throws when past + n exceeds the capacity.
Var attention(const Var& qkv, int heads, const Tensor& keys, const Tensor& values, Scalar<std::int64_t> past);

// `count` tokens that follow one another in one sequence of a cache, after `past` earlier ones.
struct TokenRun {
  std::int64_t sequence, past, count;
  const std::int64_t* place = nullptr;  // in the device's memory, of `past`, if it lies there
  Scalar<std::int64_t> first() const { return {place, past}; }
  bool operator==(const TokenRun&) const = default;
};

// Up to so many tokens of a run have the bits they would have alone.
inline constexpr std::int64_t kTokensAsAlone = 4;

// The same for tokens of sequences that have come differently far: the rows of qkv (..., 3C) are those of the runs, one
// run after the other, and a later run of a sequence sees the earlier ones. -> (..., C).
Var attention(const Var& qkv, int heads, const Tensor& keys, const Tensor& values, std::span<const TokenRun> runs);

// --- loss.cpp ---

// Mean over all rows of -log softmax(z w^T)[target], in nats, of one element. z (..., C), w (Vp, C), targets (...) i32
// in [0, vocab); rows of w from `vocab` on are padding and take no part. The logits exist for a chunk of rows at a
// time: at most `chunk_bytes`. When recorded, gradients are computed in the same pass (as in llm.c's fused classifier).
inline constexpr std::int64_t kLossChunkBytes = 128 << 20;
Var cross_entropy(const Var& z, const Var& w, const Tensor& targets, std::int64_t vocab,
                  std::int64_t chunk_bytes = kLossChunkBytes);

// The losses of each row (R), for an objective that weights them. Keeps no logits: the backward pass makes those of
// each chunk again.
Var token_losses(const Var& z, const Var& w, const Tensor& targets, std::int64_t vocab,
                 std::int64_t chunk_bytes = kLossChunkBytes);

// Mean over all rows of what a student learns from a teacher's distribution (Distillation in kernels.h) and the
// targets, of one element. The teacher's state (..., C') and head (Vq, C') are constants; both heads name the same
// `vocab` ids. Chunks and gradients as for cross_entropy, with the teacher's logits of a chunk beside the student's.
Var distillation(const Var& z, const Var& w, const Tensor& targets, const Tensor& teacher_z, const Tensor& teacher_w,
                 std::int64_t vocab, const Distillation& rule, std::int64_t chunk_bytes = kLossChunkBytes);

// Mean over all elements of -t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)), of one element. targets in [0, 1], of the
// shape of z; a constant.
Var bce_with_logits(const Var& z, const Tensor& targets);

// --- route.cpp ---

// The k largest of scores (B, T) of each sequence: their places (B, k) i32, ascending, and a mask (B, T) that is 1
// there and 0 elsewhere. Of equal scores the first are taken. A choice has no gradient.
struct TopK {
  Tensor index, chosen;
};
TopK top_k(const Tensor& scores, std::int64_t k);

// The rows of each sequence that index (B, k) names: x (B, T, C) -> (B, k, C). A row may be named once, in ascending
// order. The first is for values of any type, and is not recorded.
Tensor gather_rows(const Tensor& x, const Tensor& index);
Var gather_rows(const Var& x, const Tensor& index);

// h, with scale sigmoid(z) o added to the rows that index names: h (B, T, C), z (B, k, 1), o (B, k, C).
Var gated_scatter(const Var& h, const Tensor& index, const Var& z, const Var& o, float scale);

// --- gate.cpp ---

// The gated recurrent update: g = sigmoid(z / tau + sigma N(0,1)), one draw per row; returns g h + (1 - g) o.
// z, h, o of one shape (..., C). Noise is a function of its key, so a recomputation repeats it.
Var gate_mix(const Var& z, const Var& h, const Var& o, const GateNoise& noise);

// gate_mix, and in the same pass what the next recurrence reads of its result: with state_noise added (add_noise), and
// normalized (layernorm with w (C), no bias).
struct GateStep {
  Var h, noisy, normed;
};
GateStep gate_step(const Var& z, const Var& h, const Var& o, const Var& w, const GateNoise& noise,
                   const StateNoise& state_noise, float eps = 1e-5f);

// --- exit.cpp ---

// A token may stop at each of S exits: gates (R, S) holds the logits of stopping at an exit once it is reached, lambda
// = sigmoid(gate). The probability of each exit, p_s = lambda_s prod_{q<s} (1 - lambda_q); the last takes what is left.
Tensor exit_distribution(const Tensor& gates);

// The mean over rows of sum_s p_s losses_s - beta entropy(p), of one element. gates, losses (R, S).
Var exit_loss(const Var& gates, const Var& losses, double beta);

// Whether going on from each exit pays, for a gate that is trained by itself: the sum over the exits after the first of
// the mean over rows of -w_s ln(1 - lambda_s) - (1 - w_s) ln lambda_s, divided by S, with w_s = sigmoid(50 (i_s -
// 0.005)), i_s = max(0, losses_{s-1} - losses_s). losses is a constant.
Var exit_gate_loss(const Var& gates, const Tensor& losses);

// sum_s p_s losses_s of each row (R), without gradients.
Tensor expected_losses(const Tensor& gates, const Tensor& losses);

}  // namespace grt
