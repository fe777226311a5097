#include "ops/cases.h"

#include <numeric>

#include "core/threads.h"
#include "ops/distillation_cases.h"
#include "ops/reference.h"

namespace grt {
namespace {

using std::int64_t;
using Vars = std::span<const Var>;
using Tensors = std::span<const Tensor>;
using reference::Values;

double count(const Shape& s) { return static_cast<double>(s.numel()); }

// --- one function for each operation: its case at any size ---

OpCase unary(const char* op, std::string variant, Shape x, std::function<Var(const Var&)> f,
             std::function<double(double)> value, double backward_elements = 3) {
  return {.op = op,
          .variant = std::move(variant),
          .inputs = {{x}},
          .run = [f](Vars v) { return f(v[0]); },
          .reference = [value](Tensors t) { return reference::each(t[0], value); },
          .forward = {0, 2 * count(x)},
          .backward = {0, backward_elements * count(x)}};
}

OpCase scale_case(std::string variant, Shape x, float s) {
  return unary(
      "scale", variant, x, [s](const Var& x) { return scale(x, s); }, [s](double x) { return s * x; }, 2);
}
OpCase silu_case(std::string variant, Shape x) { return unary("silu", variant, x, silu, reference::silu); }
OpCase gelu_case(std::string variant, Shape x, Gelu kind) {
  return unary(
      "gelu", variant, x, [kind](const Var& x) { return gelu(x, kind); },
      [kind](double x) { return reference::gelu(x, kind); });
}

OpCase add_noise_case(std::string variant, Shape x, float sigma) {
  const NoiseKey key{7, 3, 5};
  return {.op = "add_noise",
          .variant = std::move(variant),
          .inputs = {{x}},
          .run = [=](Vars v) { return add_noise(v[0], sigma, key); },
          .reference =
              [=](Tensors t) {
                Values y = reference::each(t[0], [](double x) { return x; });
                for (std::size_t i = 0; i < y.size(); ++i) y[i] += sigma * static_cast<double>(random_normal(key, i));
                return y;
              },
          .forward = {0, 2 * count(x)},
          .tolerance = 1e-6};  // normals are defined up to the rounding of f32
}

// Of the shape and type of its input, whose values play no part.
OpCase truncated_normal_case(std::string variant, Shape s, int64_t first) {
  const NoiseKey key{7, 3, 6};
  return {.op = "truncated_normal",
          .variant = std::move(variant),
          .inputs = {{s}},
          .run = [=](Vars v) -> Var {
            return truncated_normal(v[0].shape(), 0.02f, key, first, v[0].value().dtype(), v[0].device());
          },
          .reference = [=](Tensors t) { return reference::truncated_normal(t[0].shape(), 0.02f, key, first); },
          .forward = {0, count(s)},
          .tolerance = 1e-6,  // normals are defined up to the rounding of f32
          .differentiable = false};
}

OpCase add_case(std::string variant, Shape s) {
  return {.op = "add",
          .variant = std::move(variant),
          .inputs = {{s}, {s}},
          .run = [](Vars v) { return v[0] + v[1]; },
          .reference = [](Tensors t) { return reference::each(t[0], t[1], std::plus<>()); },
          .forward = {0, 3 * count(s)}};
}

OpCase lerp_case(std::string variant, Shape s, float share) {
  return {.op = "lerp",
          .variant = std::move(variant),
          .inputs = {{s}, {s}},
          .run = [=](Vars v) { return lerp(v[0], v[1], share); },
          .reference =
              [=](Tensors t) {
                return reference::each(t[0], t[1], [=](double a, double b) { return share * a + (1.0 - share) * b; });
              },
          .forward = {0, 3 * count(s)},
          .backward = {0, 4 * count(s)}};
}

OpCase concat_case(std::string variant, Shape a, int64_t right) {
  const double n = 2 * (count(a) + count(a.with_last(right)));
  return {.op = "concat",
          .variant = std::move(variant),
          .inputs = {{a}, {a.with_last(right)}},
          .run = [](Vars v) { return concat(v[0], v[1]); },
          .reference = [](Tensors t) { return reference::concat(t[0], t[1]); },
          .forward = {0, n},
          .backward = {0, n}};
}

struct ProductWork {
  Work forward, backward;

  ProductWork(int64_t rows, int64_t in, int64_t out) {
    const double r = static_cast<double>(rows), i = static_cast<double>(in), o = static_cast<double>(out);
    const double elements = r * i + i * o + r * o;
    forward = {2 * r * i * o, elements};
    backward = {4 * r * i * o, 2 * elements};
  }
};

OpCase linear_case(std::string variant, Shape x, int64_t out, bool bias) {
  const ProductWork work(x.rows(), x.last(), out);
  OpCase c{.op = "linear",
           .variant = std::move(variant),
           .inputs = {{x}, {{out, x.last()}}},
           .run = [](Vars v) { return linear(v[0], v[1], v.size() > 2 ? v[2] : Var()); },
           .reference = [](Tensors t) { return reference::linear(t[0], t[1], 0, t.size() > 2 ? t[2] : Tensor()); },
           .forward = work.forward,
           .backward = work.backward};
  if (bias) c.inputs.push_back({{out}});
  return c;
}

// x times the columns from `begin` on of w (out, columns).
OpCase linear_columns_case(std::string variant, Shape x, int64_t out, int64_t columns, int64_t begin, bool plus) {
  const ProductWork work(x.rows(), x.last(), out);
  OpCase c{.op = "linear_columns",
           .variant = std::move(variant),
           .inputs = {{x}, {{out, columns}}},
           .run = [=](Vars v) { return linear_columns(v[0], v[1], begin, v.size() > 2 ? v[2] : Var()); },
           .reference = [=](Tensors t) { return reference::linear(t[0], t[1], begin, t.size() > 2 ? t[2] : Tensor()); },
           .forward = work.forward,
           .backward = work.backward};
  if (plus) c.inputs.push_back({x.with_last(out)});
  return c;
}

// W [a ; b] in two halves is one product with the concatenation.
OpCase pair_case(Shape x, int64_t out) {
  const int64_t width = x.last();
  return {.op = "linear_columns",
          .variant = "both halves of one weight",
          .inputs = {{x}, {x}, {{out, 2 * width}}},
          .run = [=](Vars v) { return linear_columns(v[0], v[2], 0, linear_columns(v[1], v[2], width)); },
          .reference =
              [](Tensors t) {
                const Values both = reference::concat(t[0], t[1]);
                const Shape shape = t[0].shape().with_last(2 * t[0].shape().last());
                return reference::linear(Tensor::from<double>(shape, both, t[0].device()), t[2], 0, {});
              }};
}

OpCase layernorm_case(std::string variant, Shape x, bool bias) {
  OpCase c{
      .op = "layernorm",
      .variant = std::move(variant),
      .inputs = {{x}, {{x.last()}}},
      .run = [](Vars v) { return layernorm(v[0], v[1], v.size() > 2 ? v[2] : Var()); },
      .reference = [](Tensors t) { return reference::layernorm(t[0], t[1], t.size() > 2 ? t[2] : Tensor(), 1e-5f); },
      .forward = {0, 2 * count(x)},
      .backward = {0, 3 * count(x)}};
  if (bias) c.inputs.push_back({{x.last()}});
  return c;
}

OpCase embedding_case(std::string variant, Shape tokens, int64_t ids, int64_t vocab, int64_t positions, int64_t width,
                      int64_t first) {
  const double n = count(tokens) * static_cast<double>(width);
  return {.op = "embedding",
          .variant = std::move(variant),
          .inputs = {{tokens, 0, ids}, {{vocab, width}}, {{positions, width}}},
          .run = [=](Vars v) { return embedding(v[0].value(), v[1], v[2], first); },
          .reference = [=](Tensors t) { return reference::embedding(t[0], t[1], t[2], first); },
          .forward = {0, 3 * n},
          .backward = {0, 3 * n + static_cast<double>((vocab + positions) * width)}};
}

OpCase attention_case(std::string variant, int64_t batch, int64_t time, int64_t width, int heads) {
  const double n = static_cast<double>(batch * time * width), pairs = n * static_cast<double>(time + 1) / 2;
  return {.op = "attention",
          .variant = std::move(variant),
          .inputs = {{{batch, time, 3 * width}}},
          .run = [=](Vars v) { return attention(v[0], heads); },
          .reference = [=](Tensors t) { return reference::attention(t[0], heads, {}, {}, 0); },
          .forward = {4 * pairs, 4 * n},
          .backward = {10 * pairs, 8 * n}};  // the scores once more, then dP, dq, dk, dv
}

OpCase cached_attention_case(std::string variant, int64_t batch, int64_t past, int64_t fresh, int64_t width,
                             int heads) {
  const Shape cache{batch, heads, past + fresh + 1, width / heads};
  const double seen = static_cast<double>(past) + static_cast<double>(fresh + 1) / 2;
  return {.op = "attention",
          .variant = std::move(variant),
          .inputs = {{{batch, fresh, 3 * width}}, {cache}, {cache}},
          .run = [=](Vars v) { return attention(v[0], heads, v[1].value(), v[2].value(), past); },
          .reference = [=](Tensors t) { return reference::attention(t[0], heads, t[1], t[2], past); },
          .forward = {4 * seen * static_cast<double>(batch * fresh * width),
                      2 * static_cast<double>(batch * (past + fresh) * width)},
          .differentiable = false};
}

std::vector<CaseInput> loss_inputs(const Shape& z, int64_t padded, int64_t vocab) {
  const Shape targets = z.rank() == 3 ? Shape{z[0], z[1]} : Shape{z[0]};
  return {{z}, {{padded, z.last()}, 0.5}, {targets, 0, vocab}};
}

OpCase cross_entropy_case(std::string variant, Shape z, int64_t padded, int64_t vocab, int64_t chunk_bytes) {
  const ProductWork work(z.rows(), z.last(), padded);
  return {.op = "cross_entropy",
          .variant = std::move(variant),
          .inputs = loss_inputs(z, padded, vocab),
          .run = [=](Vars v) { return cross_entropy(v[0], v[1], v[2].value(), vocab, chunk_bytes); },
          .reference =
              [=](Tensors t) {
                const Values losses = reference::token_losses(t[0], t[1], t[2], vocab);
                return Values{std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size())};
              },
          .forward = work.forward,
          .backward = {3 * work.forward.flops, 3 * work.forward.elements},
          .gradient_in_forward = true};
}

OpCase token_losses_case(std::string variant, Shape z, int64_t padded, int64_t vocab, int64_t chunk_bytes) {
  const ProductWork work(z.rows(), z.last(), padded);
  return {.op = "token_losses",
          .variant = std::move(variant),
          .inputs = loss_inputs(z, padded, vocab),
          .run = [=](Vars v) { return token_losses(v[0], v[1], v[2].value(), vocab, chunk_bytes); },
          .reference = [=](Tensors t) { return reference::token_losses(t[0], t[1], t[2], vocab); },
          .forward = work.forward,
          .backward = {3 * work.forward.flops, 3 * work.forward.elements}};  // the logits once more
}

OpCase exit_distribution_case(std::string variant, int64_t rows, int64_t exits) {
  return {.op = "exit_distribution",
          .variant = std::move(variant),
          .inputs = {{{rows, exits}}},
          .run = [](Vars v) -> Var { return exit_distribution(v[0].value()); },
          .reference = [](Tensors t) { return reference::exit_distribution(t[0]); },
          .forward = {0, 2 * count({rows, exits})},
          .differentiable = false};
}

OpCase exit_loss_case(std::string variant, int64_t rows, int64_t exits, double beta) {
  const Shape shape{rows, exits};
  return {.op = "exit_loss",
          .variant = std::move(variant),
          .inputs = {{shape}, {shape}},
          .run = [=](Vars v) { return exit_loss(v[0], v[1], beta); },
          .reference =
              [=](Tensors t) {
                const Values sums = reference::exit_losses(t[0], t[1], beta);
                return Values{std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(rows)};
              },
          .forward = {0, 2 * count(shape)},
          .backward = {0, 4 * count(shape)}};
}

// The losses are a constant, made of small numbers: their differences lie about the turning point of w.
OpCase exit_gate_loss_case(std::string variant, int64_t rows, int64_t exits) {
  const auto losses = [=](Device& device) {
    Values v;
    for (int64_t i = 0; i < rows * exits; ++i) v.push_back(0.02 * static_cast<double>(i * 7 % 11));
    return Tensor::from<double>({rows, exits}, v, device);
  };
  return {.op = "exit_gate_loss",
          .variant = std::move(variant),
          .inputs = {{{rows, exits}}},
          .run =
              [=](Vars v) {
                const Tensor wide = losses(v[0].device());
                if (v[0].value().dtype() == DType::f64) return exit_gate_loss(v[0], wide);
                const std::vector<float> narrow(wide.data<double>(), wide.data<double>() + wide.numel());
                return exit_gate_loss(v[0], Tensor::from<float>(wide.shape(), narrow, v[0].device()));
              },
          .reference = [=](Tensors t) { return Values{reference::exit_gate_loss(t[0], losses(t[0].device()))}; },
          .forward = {0, 2 * count({rows, exits})}};
}

OpCase expected_losses_case(std::string variant, int64_t rows, int64_t exits) {
  return {.op = "expected_losses",
          .variant = std::move(variant),
          .inputs = {{{rows, exits}}, {{rows, exits}}},
          .run = [](Vars v) -> Var { return expected_losses(v[0].value(), v[1].value()); },
          .reference = [](Tensors t) { return reference::exit_losses(t[0], t[1], 0); },
          .forward = {0, 2 * count({rows, exits})},
          .differentiable = false};
}

// Soft and hard targets in turn.
Tensor bce_targets(const Tensor& like) {
  return visit_real(like.dtype(), [&]<class T>() {
    std::vector<T> t(like.numel());
    for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<T>(i % 4) / 3;
    return Tensor::from<T>(like.shape(), t, like.device());
  });
}

OpCase bce_with_logits_case(std::string variant, Shape z) {
  return {.op = "bce_with_logits",
          .variant = std::move(variant),
          .inputs = {{z, 3}},
          .run = [](Vars v) { return bce_with_logits(v[0], bce_targets(v[0].value())); },
          .reference =
              [](Tensors t) {
                const Values losses = reference::bce_with_logits(t[0], bce_targets(t[0]));
                return Values{std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size())};
              },
          .forward = {0, 3 * count(z)},
          .backward = {0, 3 * count(z)}};
}

OpCase top_k_case(std::string variant, int64_t batch, int64_t time, int64_t k, bool ties) {
  const auto scores = [=](const Tensor& x) { return ties ? scale(x, 0).value() : x; };
  return {.op = "top_k",
          .variant = std::move(variant),
          .inputs = {{{batch, time}}},
          .run = [=](Vars v) -> Var { return top_k(scores(v[0].value()), k).index; },
          .reference = [=](Tensors t) { return reference::top_k(scores(t[0]), k); },
          .forward = {0, static_cast<double>(batch * (2 * time + k))},
          .differentiable = false};
}

// (B, k): every other place, from 0 and from 1 in turn.
Tensor every_other(int64_t batch, int64_t k, Device& device) {
  std::vector<std::int32_t> places;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < k; ++i) places.push_back(static_cast<std::int32_t>(2 * i + b % 2));
  const Tensor index = Tensor::from<std::int32_t>({batch, k}, places, device);
  device.sync();  // before `places` dies
  return index;
}

// Of the rows of x (B, T, C), T / 2 of each sequence.
OpCase gather_rows_case(std::string variant, Shape x) {
  const int64_t k = x[1] / 2;
  return {.op = "gather_rows",
          .variant = std::move(variant),
          .inputs = {{x}},
          .run = [=](Vars v) { return gather_rows(v[0], every_other(x[0], k, v[0].device())); },
          .reference = [=](Tensors t) { return reference::gather_rows(t[0], every_other(x[0], k, t[0].device())); },
          .forward = {0, count(x)},
          .backward = {0, 2 * count(x)}};
}

OpCase gated_scatter_case(std::string variant, Shape h, float scale) {
  const int64_t k = h[1] / 2;
  return {.op = "gated_scatter",
          .variant = std::move(variant),
          .inputs = {{h}, {{h[0], k, 1}}, {{h[0], k, h[2]}}},
          .run = [=](Vars v) { return gated_scatter(v[0], every_other(h[0], k, v[0].device()), v[1], v[2], scale); },
          .reference =
              [=](Tensors t) {
                return reference::gated_scatter(t[0], every_other(h[0], k, t[0].device()), t[1], t[2], scale);
              },
          .forward = {0, 3 * count(h)},
          .backward = {0, 2 * count(h)}};
}

OpCase gate_mix_case(std::string variant, Shape s, float tau, float sigma) {
  const GateNoise noise{tau, sigma, {11, 2, 9}};
  return {.op = "gate_mix",
          .variant = std::move(variant),
          .inputs = {{s}, {s}, {s}},
          .run = [=](Vars v) { return gate_mix(v[0], v[1], v[2], noise); },
          .reference = [=](Tensors t) { return reference::gate_mix(t[0], t[1], t[2], noise); },
          .forward = {0, 4 * count(s)},
          .backward = {0, 7 * count(s)},
          .tolerance = sigma != 0 ? 1e-6 : 1e-11};  // normals are defined up to the rounding of f32
}

// --- variants ---

// Every input is the first one: its gradient is a sum within one operation.
OpCase same_input(OpCase c) {
  c.variant = "one value as every input";
  const std::size_t n = c.inputs.size();
  c.inputs.resize(1);
  c.run = [run = c.run, n](Vars v) { return run(std::vector<Var>(n, v[0])); };
  c.reference = [reference = c.reference, n](Tensors t) { return reference(std::vector<Tensor>(n, t[0])); };
  return c;
}

// Every gradient is a sum over two operations, the second of which adds.
OpCase used_twice(OpCase c) {
  c.variant += c.variant.empty() ? "used twice" : ", used twice";
  c.run = [run = c.run](Vars v) { return run(v) + run(v); };
  c.reference = [reference = c.reference](Tensors t) {
    Values y = reference(t);
    for (double& x : y) x *= 2;
    return y;
  };
  return c;
}

OpCase recomputed(OpCase c) {
  c.variant += c.variant.empty() ? "recomputed" : ", recomputed";
  c.run = [run = c.run](Vars v) {
    return checkpoint([run, inputs = std::vector<Var>(v.begin(), v.end())] { return run(inputs); });
  };
  return c;
}

std::vector<OpCase> basic_cases() {
  const Shape small{2, 3, 5}, wide{3, 41};
  return {
      add_case("", small),
      add_case("one row", {1, 67}),
      same_input(add_case("", small)),
      scale_case("", small, -1.5f),
      silu_case("", small),
      silu_case("many elements", wide),
      gelu_case("erf", small, Gelu::erf),
      gelu_case("erf, many elements", wide, Gelu::erf),
      gelu_case("tanh", small, Gelu::tanh),
      gelu_case("tanh, many elements", wide, Gelu::tanh),
      add_noise_case("", wide, 0.3f),
      add_noise_case("no noise", small, 0),
      truncated_normal_case("", {30, 50}, 0),
      truncated_normal_case("from row 5", {2, 3, 7}, 5),
      lerp_case("", small, 0.3f),
      same_input(lerp_case("", small, 0.3f)),
      concat_case("", small, 2),
      same_input(concat_case("", small, 5)),
      linear_case("", small, 4, false),
      linear_case("bias", small, 4, true),
      linear_case("one row, bias", {1, 1, 7}, 3, true),
      linear_case("one column", {4, 3}, 1, true),
      linear_case("odd sizes over one tile", {67, 33}, 51, true),
      same_input(linear_case("", {5, 5}, 5, false)),
      linear_columns_case("from 0", small, 4, 9, 0, false),
      linear_columns_case("offset", small, 4, 9, 3, false),
      linear_columns_case("offset, plus", small, 4, 9, 4, true),
      linear_columns_case("one row, plus", {1, 1, 5}, 4, 9, 4, true),
      linear_columns_case("odd sizes over one tile", {37, 35}, 51, 77, 13, true),
      pair_case(small, 4),
      layernorm_case("", small, false),
      layernorm_case("bias", small, true),
      layernorm_case("one row", {1, 1, 9}, true),
      layernorm_case("many rows", {70, 19}, true),
      same_input(layernorm_case("", {7}, true)),
      embedding_case("", {2, 5}, 7, 9, 6, 5, 0),
      embedding_case("from position 3", {2, 5}, 7, 9, 8, 5, 3),
      embedding_case("one token throughout", {3, 4}, 1, 3, 4, 5, 0),
      embedding_case("T = 1", {2, 1}, 7, 9, 6, 5, 2),
      attention_case("", 2, 5, 12, 3),
      attention_case("one head", 1, 7, 5, 1),
      attention_case("T = 1", 2, 1, 6, 2),
      attention_case("odd sizes over one block", 1, 139, 18, 2),
      cached_attention_case("cache, one token", 2, 6, 1, 12, 3),
      cached_attention_case("cache, several tokens", 2, 3, 4, 12, 3),
      cached_attention_case("empty cache", 1, 0, 5, 6, 2),
      cross_entropy_case("", {2, 3, 5}, 7, 7, kLossChunkBytes),
      cross_entropy_case("padded vocabulary", {2, 3, 5}, 16, 11, kLossChunkBytes),
      cross_entropy_case("one row", {1, 1, 5}, 8, 7, kLossChunkBytes),
      cross_entropy_case("chunks of one row", {7, 5}, 16, 11, 1),
      cross_entropy_case("several chunks, the last shorter", {2, 9, 5}, 16, 11, 5 * 16 * 4),
      token_losses_case("padded vocabulary", {2, 3, 5}, 16, 11, kLossChunkBytes),
      token_losses_case("chunks of one row", {7, 5}, 16, 11, 1),
      token_losses_case("several chunks", {2, 9, 5}, 16, 11, 5 * 16 * 4),
      exit_distribution_case("", 7, 4),
      exit_distribution_case("one exit", 3, 1),
      exit_loss_case("", 7, 4, 0.05),
      exit_loss_case("no entropy", 5, 3, 0),
      exit_loss_case("one exit", 5, 1, 0.05),
      exit_loss_case("many rows", 1031, 6, 0.3),
      same_input(exit_loss_case("", 5, 4, 0.05)),
      exit_gate_loss_case("", 7, 4),
      exit_gate_loss_case("many rows", 1031, 6),
      expected_losses_case("", 7, 4),
      bce_with_logits_case("", {2, 5, 1}),
      bce_with_logits_case("many elements", {5000}),
      top_k_case("", 3, 19, 7, false),
      top_k_case("all", 2, 6, 6, false),
      top_k_case("one", 2, 6, 1, false),
      top_k_case("equal scores", 2, 9, 4, true),
      gather_rows_case("", {2, 6, 5}),
      gather_rows_case("one column", {3, 7, 1}),
      gather_rows_case("odd sizes", {3, 41, 67}),
      gated_scatter_case("", {2, 6, 5}, 0.7f),
      gated_scatter_case("odd sizes", {3, 41, 67}, -1.5f),
      gate_mix_case("", small, 1, 0),
      gate_mix_case("temperature", small, 0.8f, 0),
      gate_mix_case("noise", wide, 0.8f, 0.3f),
      same_input(gate_mix_case("", small, 1, 0)),
  };
}

struct Size {
  const char* name;
  int64_t batch, time, width;
  int heads;
  int64_t padded, vocab;
};

std::vector<OpCase> cases_at(const Size& s) {
  const auto at = [&](const char* what) { return *what ? fmt::format("{}, {}", s.name, what) : std::string(s.name); };
  const Shape x{s.batch, s.time, s.width}, hidden = x.with_last(4 * s.width);
  return {
      add_case(at(""), x),
      scale_case(at(""), x, 0.5f),
      silu_case(at(""), x),
      gelu_case(at("erf"), hidden, Gelu::erf),
      gelu_case(at("tanh"), hidden, Gelu::tanh),
      add_noise_case(at(""), x, 0.1f),
      truncated_normal_case(at(""), x, 0),
      lerp_case(at(""), x, 0.3f),
      concat_case(at(""), x, s.width),
      linear_case(at("c_attn"), x, 3 * s.width, false),
      linear_case(at("attn.c_proj"), x, s.width, false),
      linear_case(at("c_fc"), x, 4 * s.width, false),
      linear_case(at("c_fc, bias"), x, 4 * s.width, true),
      linear_case(at("mlp.c_proj"), hidden, s.width, false),
      linear_columns_case(at("inject, plus"), x, s.width, 2 * s.width, 0, true),
      layernorm_case(at(""), x, false),
      layernorm_case(at("bias"), x, true),
      embedding_case(at(""), {s.batch, s.time}, s.vocab, s.padded, s.time, s.width, 0),
      attention_case(at(""), s.batch, s.time, s.width, s.heads),
      cached_attention_case(at("cache"), s.batch, s.time - 2, 1, s.width, s.heads),
      cross_entropy_case(at(""), x, s.padded, s.vocab, kLossChunkBytes),
      token_losses_case(at(""), x, s.padded, s.vocab, kLossChunkBytes),
      distillation_case(at(""), x, s.width, s.padded, s.vocab, {0.5, 2}),
      exit_distribution_case(at("10 exits"), x.rows(), 10),
      exit_loss_case(at("10 exits"), x.rows(), 10, 0.05),
      exit_gate_loss_case(at("10 exits"), x.rows(), 10),
      expected_losses_case(at("10 exits"), x.rows(), 10),
      bce_with_logits_case(at(""), {s.batch, s.time, 1}),
      top_k_case(at(""), s.batch, s.time, s.time / 2, false),
      gather_rows_case(at(""), x),
      gated_scatter_case(at(""), x, 0.1f),
      gate_mix_case(at("noise"), x, 1, 0.1f),
  };
}

// FNV-1a, 32 bits.
std::uint32_t hash(const std::string& text) {
  std::uint32_t h = 2166136261u;
  for (const unsigned char c : text) h = (h ^ c) * 16777619u;
  return h;
}

template <class T, class F>
Tensor filled(const Shape& shape, Device& device, F&& value) {
  std::vector<T> host(shape.numel());
  parallel_for(shape.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) host[i] = value(static_cast<std::uint64_t>(i));
  });
  const Tensor t = Tensor::from<T>(shape, host, device);
  device.sync();  // before `host` dies
  return t;
}

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> all = basic_cases();
  for (OpCase& c : distillation_cases()) all.push_back(std::move(c));
  for (std::size_t i = 0, n = all.size(); i < n; ++i) {
    if (!all[i].differentiable) continue;
    all.push_back(used_twice(all[i]));
    all.push_back(recomputed(all[i]));
  }
  return all;
}

std::vector<OpCase> bench_cases() {
  std::vector<OpCase> all = cases_at({"124M", 1, 1024, 768, 12, 50304, 50257});
  for (OpCase& c : cases_at({"nano", 8, 256, 128, 4, 320, 257})) all.push_back(std::move(c));
  return all;
}

std::vector<Var> make_inputs(const OpCase& c, DType dtype, Device& device) {
  std::vector<Var> vars;
  for (const CaseInput& input : c.inputs) {
    const NoiseKey key{1, hash(c.name()), static_cast<std::uint32_t>(vars.size())};
    if (input.ids > 0) {
      vars.push_back(filled<std::int32_t>(input.shape, device, [&](std::uint64_t i) {
        return static_cast<std::int32_t>(random_below(key, i, static_cast<std::uint64_t>(input.ids)));
      }));
      continue;
    }
    visit_real(dtype, [&]<class T>() {
      const Tensor t = filled<T>(input.shape, device, [&](std::uint64_t i) {
        return static_cast<T>(static_cast<float>(input.std) * random_normal(key, i));
      });
      vars.push_back(c.differentiable ? Var::leaf(t) : Var(t));
    });
  }
  return vars;
}

}  // namespace grt
