// The kernel contract: everything a backend must be able to compute, each function declared once.
//
// Conventions. Outputs come first. Kernels never record, and trust their arguments: the operations in ops/ have checked
// shapes, types and devices. An `Into` that tests false is skipped; one whose `add` is set is added to. R = rows (every
// extent but the last), C = last extent. Sums are taken in an order that depends on shapes alone, so results are
// bit-equal for any number of threads.
//
// ops/cpu/ implements this for f32 and f64, cuda/ for f32.
#pragma once

#include <algorithm>

#include "core/philox.h"
#include "core/tensor.h"

namespace grt {

// A run of columns of a tensor seen as the matrix (rows, last); count < 0: up to the last column.
struct Columns {
  std::int64_t begin = 0, count = -1;
};

// One factor of a product: some columns of a tensor, transposed or not.
struct Factor {
  const Tensor& tensor;
  bool transposed = false;
  Columns columns = {};
};

enum class Gelu { erf, tanh };

// What a backend keeps of the factors of products beside the tensors. panels: those of a held weight that is used again
// (ops/hold.h); rounded: copies in bf16, of a held weight up to the end of the hold, of any other factor for the time
// of the call.
enum class Keeps { nothing, panels, rounded };

// The gate of one recurrence: g = sigmoid(z / tau + sigma N(0,1)), one draw per row.
struct GateNoise {
  float tau = 1;
  float sigma = 0;
  NoiseKey key = {};
};

// What is added to a state: sigma N(0,1), one draw for each element.
struct StateNoise {
  float sigma = 0;
  NoiseKey key = {};
};

// The state after one recurrence, y (R, C), and as the next one reads it: noisy = y + its noise, and normed =
// layernorm(y) without a bias, whose mean and rstd (R) are saved for backward. noisy is absent where there is no noise.
struct NextState {
  Tensor y, noisy, normed, mean, rstd;
};
// The gradients of its three faces; any of them may be absent, but not all.
struct NextStateGradients {
  Tensor y, noisy, normed;
};

// What a student learns: (1 - weight) cross-entropy + weight t^2 KL(teacher || student), both distributions
// softmax(logits / t) with t the temperature. t^2 keeps the gradient's size. Source: Hinton et al. 2015,
// arXiv:1503.02531.
struct Distillation {
  double weight = 0.5, temperature = 1;
};

// One AdamW update (Loshchilov & Hutter 2019): with g' = grad_scale g and bias corrections 1/(1-beta^t),
//   p <- p (1 - lr weight_decay);  p <- p - lr m^ / (sqrt(v^) + eps).
struct AdamW {
  Scalar<double> lr;
  double beta1, beta2, eps, weight_decay;
  Scalar<double> grad_scale;                  // the clipping coefficient; where it is NaN nothing is updated
  Scalar<double> m_correction, v_correction;  // 1/(1-beta1^t), 1/(1-beta2^t)
};

// What a gradient of L2 norm `norm` is multiplied by so that its norm becomes at most `clip`; clip 0: never clipped.
constexpr double clip_coefficient(double norm, double clip) {
  return clip == 0 ? 1 : std::min(1.0, clip / (norm + 1e-6));
}

struct Kernels {
  virtual ~Kernels() = default;

  // --- elementwise ---
  virtual void add(const Into& y, const Tensor& a, const Tensor& b) = 0;            // y = a + b
  virtual void copy(const Into& y, const Tensor& x) = 0;                            // y = x
  virtual void scale(const Into& y, const Tensor& x, const Tensor& s) = 0;          // y = s[0] x, s of one element
  virtual void lerp(const Into& y, const Tensor& a, const Tensor& b, float t) = 0;  // y = t a + (1 - t) b
  virtual void multiply(const Into& y, const Tensor& x, float s) = 0;               // y = s x
  virtual void scale_rows(const Into& y, const Tensor& x, const Tensor& s) = 0;     // y[r] = s[r] x[r], s (R)
  virtual void add_noise(const Tensor& y, const Tensor& x, float sigma, NoiseKey key) = 0;  // y = x + sigma N(0,1)
  // y (R, C): element (r, c) = std * random_truncated_normal(key, first + r, c), of core/philox.h.
  virtual void truncated_normal(const Tensor& y, float std, NoiseKey key, Scalar<std::int64_t> first) = 0;
  virtual void silu(const Tensor& y, const Tensor& x) = 0;  // y = x sigmoid(x)
  virtual void silu_backward(const Into& dx, const Tensor& dy, const Tensor& x) = 0;
  virtual void gelu(const Tensor& y, const Tensor& x, Gelu kind) = 0;  // y = x Phi(x), or its tanh form
  virtual void gelu_backward(const Into& dx, const Tensor& dy, const Tensor& x, Gelu kind) = 0;
  // Columns of y from `begin` on = x (R, C): half of a concatenation; and back.
  virtual void put_columns(const Tensor& y, std::int64_t begin, const Tensor& x) = 0;
  virtual void get_columns(const Into& x, const Tensor& y, std::int64_t begin) = 0;

  // --- products ---
  // columns of y (M, N) = op(a) (M, K) op(b) (K, N), + bias (N) if given. b may be packed, transposed: a and y are then
  // f32, a is whole, and y is the product of f32 factors with the values of b (on the CPU it has that product's bits).
  virtual void matmul(const Into& y, Columns columns, const Factor& a, const Factor& b, const Tensor& bias) = 0;
  // y (M, N) = plus (M, N) + op(a) op(b).
  virtual void matmul_plus(const Tensor& y, const Tensor& plus, const Factor& a, const Factor& b) {
    copy({y}, plus);
    matmul({y, true}, {}, a, b, {});
  }
  // Of y = x w^T, with w some columns of a weight: dx = dy w, and the same columns of dw = dy^T x.
  virtual void linear_backward(const Into& dx, const Into& dw, const Tensor& dy, const Tensor& x, const Factor& w) {
    matmul(dx, {}, {dy}, w, {});
    matmul(dw, w.columns, {dy, true}, {x}, {});
  }

  // From hold() to let_go() the values in `weights` stand still: what a kernel derives from them it may keep till then.
  // A hold inside another of the same weights is a pass of its own (ops/hold.h); one of others takes its place.
  virtual void hold(const Tensor& weights) { static_cast<void>(weights); }
  virtual void let_go() {}
  virtual Keeps keeps() const { return Keeps::nothing; }

  // packed = w (rows, columns) f32, of a packed type: bf16 rounds to nearest, ties to even; int8 keeps, of 32 columns
  // of a row, scale = largest |w| / 127 and round(w / scale). Values are finite.
  virtual void pack(const Tensor& packed, const Tensor& w) = 0;

  // --- reductions ---
  virtual void sum_rows(const Into& y, const Tensor& x) = 0;            // y (C) = sum over rows of x (R, C)
  virtual void sum(const Into& y, const Tensor& x, double factor) = 0;  // y (1) = factor * sum of x, added in f64
  virtual void sum_squares(const Tensor& y, const Tensor& x) = 0;       // y (1) f64, added in f64
  virtual std::int64_t count_not_finite(const Tensor& x) = 0;           // NaNs and infinities

  // --- normalization ---
  // y = (x - mean) rstd * w + b over the last extent; b may be absent. mean, rstd (R) are saved for backward.
  virtual void layernorm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& w,
                         const Tensor& b, float eps) = 0;
  virtual void layernorm_backward(const Into& dx, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                                  const Tensor& w, const Tensor& mean, const Tensor& rstd) = 0;
  // sum = a + b and y = layernorm(sum) in one pass: the end of one sublayer and the beginning of the next.
  virtual void add_layernorm(const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                             const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, float eps) = 0;

  // --- embedding ---
  // y (B, T, C) = wte[tokens] + wpe[first + t]; tokens (B, T) i32. wte may be packed. The backward pass adds to dwte
  // and dwpe always.
  virtual void embedding(const Tensor& y, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                         Scalar<std::int64_t> first) = 0;
  virtual void embedding_backward(const Into& dwte, const Into& dwpe, const Tensor& dy, const Tensor& tokens,
                                  std::int64_t first) = 0;

  // --- attention ---
  // Causal self-attention of H heads. qkv (B, T, 3C): q, k, v of all heads, heads contiguous inside each; out (B, T,
  // C); lse (B, H, T): log of the sum of exponentials of the scaled scores, all that backward needs of them.
  virtual void attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, int heads) = 0;
  virtual void attention_backward(const Into& dqkv, const Tensor& dout, const Tensor& qkv, const Tensor& out,
                                  const Tensor& lse, int heads) = 0;
  // The same for n new tokens at positions past..past+n-1: appends their k and v to keys, values (B, H, capacity, D),
  // and attends to all positions up to each token's own. qkv (B, n, 3C), out (B, n, C).
  virtual void attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                                Scalar<std::int64_t> past, int heads) = 0;

  // --- loss ---
  // losses (R) = -log softmax(logits[:, :vocab])[target] in nats; dlogits = scale (softmax - one-hot), zero in the
  // columns from vocab on. logits (R, Vp), targets (R) i32. dlogits.to may be logits itself.
  virtual void cross_entropy(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& targets,
                             std::int64_t vocab, double scale) = 0;

  // losses (R) of a Distillation over the first vocab columns of logits (R, Vp) and teacher (R, Vq), and dlogits =
  // scale times their derivative, zero in the columns from vocab on. dlogits.to may be logits itself.
  virtual void distillation(const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& teacher,
                            const Tensor& targets, std::int64_t vocab, const Distillation& rule, double scale) = 0;

  // losses = -t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)), all of one shape, t in [0, 1]; and
  // dz = factor dloss[0] (sigmoid(z) - t).
  virtual void bce_with_logits(const Tensor& losses, const Tensor& z, const Tensor& targets) = 0;
  virtual void bce_with_logits_backward(const Into& dz, const Tensor& dloss, const Tensor& z, const Tensor& targets,
                                        double factor) = 0;

  // --- routing ---
  // index (B, k) i32: the places of the k largest of scores (B, T), ascending; of equals the first, NaNs last. chosen
  // (B, T): 1 there, 0 elsewhere.
  virtual void top_k(const Tensor& index, const Tensor& chosen, const Tensor& scores) = 0;
  // For an index (B, k) whose rows ascend strictly. y (B, k, C) = x[index] of x (B, T, C) of any type; dx[index] += dy.
  virtual void gather_rows(const Tensor& y, const Tensor& x, const Tensor& index) = 0;
  virtual void gather_rows_backward(const Into& dx, const Tensor& dy, const Tensor& index) = 0;
  // y = h (B, T, C), and y[index] += scale sigmoid(z) o with z (B, k, 1), o (B, k, C). Backward for z and o.
  virtual void gated_scatter(const Tensor& y, const Tensor& h, const Tensor& index, const Tensor& z, const Tensor& o,
                             float scale) = 0;
  virtual void gated_scatter_backward(const Into& dz, const Into& d_o, const Tensor& dy, const Tensor& index,
                                      const Tensor& z, const Tensor& o, float scale) = 0;

  // --- gated recurrence ---
  // y = g h + (1 - g) o with g of GateNoise. All (R, C).
  virtual void gate_mix(const Tensor& y, const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) = 0;
  virtual void gate_mix_backward(const Into& dz, const Into& dh, const Into& d_o, const Tensor& dy, const Tensor& z,
                                 const Tensor& h, const Tensor& o, const GateNoise& noise) = 0;
  // gate_mix, and of its y in the same pass what the next step reads, with w (C) of layernorm. The gradient of y is
  // the sum of those of its three faces; dw is given with the gradient of normed alone.
  virtual void gate_step(const NextState& next, const Tensor& z, const Tensor& h, const Tensor& o, const Tensor& w,
                         const GateNoise& noise, const StateNoise& state_noise, float eps) = 0;
  virtual void gate_step_backward(const Into& dz, const Into& dh, const Into& d_o, const Into& dw,
                                  const NextStateGradients& d, const NextState& next, const Tensor& z, const Tensor& h,
                                  const Tensor& o, const Tensor& w, const GateNoise& noise) = 0;

  // --- exits ---
  // gates (R, S): for each of S exits the logit of stopping there once it is reached, lambda = sigmoid(gate).
  // p (R, S) = lambda_s prod_{q<s} (1 - lambda_q); the last exit takes what is left, whatever its gate.
  virtual void exit_distribution(const Tensor& p, const Tensor& gates) = 0;
  // values (R) = sum_s p_s losses_s + beta sum_s p_s ln p_s; losses (R, S).
  virtual void exit_loss(const Tensor& values, const Tensor& gates, const Tensor& losses, double beta) = 0;
  // Of the mean of the values, whose gradient is dy, of one element.
  virtual void exit_loss_backward(const Into& dgates, const Into& dlosses, const Tensor& dy, const Tensor& gates,
                                  const Tensor& losses, double beta) = 0;

  // values (R) = sum over s >= 1 of -w_s ln(1 - lambda_s) - (1 - w_s) ln lambda_s with w_s = sigmoid(50 (i_s - 0.005)),
  // i_s = max(0, losses_{s-1} - losses_s): does going on to s pay? Backward: of the sum of the values / (R S).
  virtual void exit_gate_loss(const Tensor& values, const Tensor& gates, const Tensor& losses) = 0;
  virtual void exit_gate_loss_backward(const Into& dgates, const Tensor& dy, const Tensor& gates,
                                       const Tensor& losses) = 0;

  // --- optimizer ---
  // scale (1) f64 = clip_coefficient of the norm sqrt(squares[0]), NaN where that is not finite; squares (1) f64.
  virtual void clip_scale(const Tensor& scale, const Tensor& squares, double clip) = 0;
  virtual void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, const AdamW& step) = 0;
};

}  // namespace grt
