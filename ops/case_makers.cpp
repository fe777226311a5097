// Work is counted as ops/cases.h says, for the bandwidth and FLOP/s that bench shows: what must be read and written,
// not what a kernel does.
#include "ops/case_makers.h"

#include <functional>
#include <numeric>

#include "ops/reference.h"

namespace grt::cases {
namespace {

using std::int64_t;
using Vars = std::span<const Var>;
using Tensors = std::span<const Tensor>;
using reference::Values;

double count(const Shape& s) { return static_cast<double>(s.numel()); }

Values mean(const Values& v) { return {std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size())}; }

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

struct ProductWork {
  Work forward, backward;

  ProductWork(int64_t rows, int64_t in, int64_t out) {
    const double r = static_cast<double>(rows), i = static_cast<double>(in), o = static_cast<double>(out);
    const double elements = r * i + i * o + r * o;
    forward = {2 * r * i * o, elements};
    backward = {4 * r * i * o, 2 * elements};
  }
};

std::vector<CaseInput> loss_inputs(const Shape& z, int64_t padded, int64_t vocab) {
  const Shape targets = z.rank() == 3 ? Shape{z[0], z[1]} : Shape{z[0]};
  return {{z}, {{padded, z.last()}, 0.5}, {targets, 0, vocab}};
}

// Soft and hard targets in turn.
Tensor bce_targets(const Tensor& like) {
  return visit_real(like.dtype(), [&]<class T>() {
    std::vector<T> t(like.numel());
    for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<T>(i % 4) / 3;
    return Tensor::from<T>(like.shape(), t, like.device());
  });
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

// Constants of standard deviation `std`, functions of their site: uniform, by a hash so cheap that bench does not time
// it.
Tensor constant(const Shape& shape, std::uint32_t site, double std, const Tensor& like) {
  return visit_real(like.dtype(), [&]<class T>() {
    std::vector<T> values(shape.numel());
    const T step = static_cast<T>(static_cast<float>(std * 1.7320508 / 512));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t mixed = (static_cast<std::uint32_t>(i) + site * 977) * 2654435761u;
      values[i] = step * static_cast<T>(static_cast<int>(mixed >> 22) - 512);
    }
    const Tensor t = Tensor::from<T>(shape, values, like.device());
    like.device().sync();  // before `values` dies
    return t;
  });
}

}  // namespace

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

OpCase add_layernorm_case(std::string variant, Shape x, bool bias) {
  OpCase c{.op = "add_layernorm",
           .variant = std::move(variant),
           .inputs = {{x}, {x}, {{x.last()}}},
           .run =
               [](Vars v) {
                 const SumAndNorm y = add_layernorm(v[0], v[1], v[2], v.size() > 3 ? v[3] : Var());
                 return lerp(y.sum, y.normed, 0.25f);
               },
           .reference =
               [](Tensors t) {
                 Values y = reference::each(t[0], t[1], std::plus<>());
                 const Tensor sum = Tensor::from<double>(t[0].shape(), y, t[0].device());
                 const Values normed = reference::layernorm(sum, t[2], t.size() > 3 ? t[3] : Tensor(), 1e-5f);
                 for (std::size_t i = 0; i < y.size(); ++i) y[i] = 0.25 * y[i] + 0.75 * normed[i];
                 return y;
               },
           .forward = {0, 7 * count(x)},
           .backward = {0, 8 * count(x)}};
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

OpCase cross_entropy_case(std::string variant, Shape z, int64_t padded, int64_t vocab, int64_t chunk_bytes) {
  const ProductWork work(z.rows(), z.last(), padded);
  return {.op = "cross_entropy",
          .variant = std::move(variant),
          .inputs = loss_inputs(z, padded, vocab),
          .run = [=](Vars v) { return cross_entropy(v[0], v[1], v[2].value(), vocab, chunk_bytes); },
          .reference = [=](Tensors t) { return mean(reference::token_losses(t[0], t[1], t[2], vocab)); },
          .forward = work.forward,
          .backward = {3 * work.forward.flops, 3 * work.forward.elements},
          .gradient_in_forward = true};
}

OpCase distillation_case(std::string variant, Shape z, int64_t teacher_width, int64_t padded, int64_t vocab,
                         Distillation rule, int64_t chunk_bytes) {
  const Shape targets = z.rank() == 3 ? Shape{z[0], z[1]} : Shape{z[0]};
  const Shape teacher_z = z.with_last(teacher_width), teacher_w{padded, teacher_width};
  const double rows = static_cast<double>(z.rows()), width = static_cast<double>(z.last()),
               taught = static_cast<double>(teacher_width), ids = static_cast<double>(padded);
  // The logits of both; backward, the student's two products besides.
  const Work forward{2 * rows * ids * (width + taught), rows * (width + taught + 2 * ids) + ids * (width + taught)};
  const Work products{4 * rows * ids * width, 2 * (rows * width + rows * ids + ids * width)};
  return {.op = "distillation",
          .variant = std::move(variant),
          .inputs = {{z}, {{padded, z.last()}, 0.5}, {targets, 0, vocab}},
          .run =
              [=](Vars v) {
                return distillation(v[0], v[1], v[2].value(), constant(teacher_z, 1, 1, v[0].value()),
                                    constant(teacher_w, 2, 0.5, v[0].value()), vocab, rule, chunk_bytes);
              },
          .reference =
              [=](Tensors t) {
                return mean(reference::distillation(t[0], t[1], t[2], constant(teacher_z, 1, 1, t[0]),
                                                    constant(teacher_w, 2, 0.5, t[0]), vocab, rule));
              },
          .forward = forward,
          .backward = {forward.flops + products.flops, forward.elements + products.elements},
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
          .reference = [=](Tensors t) { return mean(reference::exit_losses(t[0], t[1], beta)); },
          .forward = {0, 2 * count(shape)},
          .backward = {0, 4 * count(shape)}};
}

// The losses are a constant, made of small numbers: their differences lie about the turning point of w.
OpCase exit_gate_loss_case(std::string variant, int64_t rows, int64_t exits) {
  const auto losses = [=](const Tensor& like) {
    return visit_real(like.dtype(), [&]<class T>() {
      std::vector<T> v;
      for (int64_t i = 0; i < rows * exits; ++i) v.push_back(static_cast<T>(0.02 * static_cast<double>(i * 7 % 11)));
      const Tensor t = Tensor::from<T>({rows, exits}, v, like.device());
      like.device().sync();  // before `v` dies
      return t;
    });
  };
  return {.op = "exit_gate_loss",
          .variant = std::move(variant),
          .inputs = {{{rows, exits}}},
          .run = [=](Vars v) { return exit_gate_loss(v[0], losses(v[0].value())); },
          .reference = [=](Tensors t) { return Values{reference::exit_gate_loss(t[0], losses(t[0]))}; },
          .forward = {0, 2 * count({rows, exits})},
          .backward = {0, 3 * count({rows, exits})}};
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

OpCase bce_with_logits_case(std::string variant, Shape z) {
  return {.op = "bce_with_logits",
          .variant = std::move(variant),
          .inputs = {{z, 3}},
          .run = [](Vars v) { return bce_with_logits(v[0], bce_targets(v[0].value())); },
          .reference = [](Tensors t) { return mean(reference::bce_with_logits(t[0], bce_targets(t[0]))); },
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

OpCase gate_step_case(std::string variant, Shape s, float gate_sigma, float state_sigma) {
  const GateNoise noise{0.8f, gate_sigma, {11, 2, 9}};
  const StateNoise state_noise{state_sigma, {11, 2, 10}};
  return {.op = "gate_step",
          .variant = std::move(variant),
          .inputs = {{s}, {s}, {s}, {{s.last()}}},
          .run =
              [=](Vars v) {
                const GateStep next = gate_step(v[0], v[1], v[2], v[3], noise, state_noise);
                return lerp(lerp(next.h, next.noisy, 0.25f), next.normed, 0.5f);
              },
          .reference =
              [=](Tensors t) {
                Values y = reference::gate_mix(t[0], t[1], t[2], noise);
                const Values normed =
                    reference::layernorm(Tensor::from<double>(t[0].shape(), y, t[0].device()), t[3], {}, 1e-5f);
                for (std::size_t i = 0; i < y.size(); ++i) {
                  const double draw = static_cast<double>(random_normal(state_noise.key, i));
                  y[i] = 0.5 * (y[i] + 0.75 * static_cast<double>(state_sigma) * draw) + 0.5 * normed[i];
                }
                return y;
              },
          .forward = {0, 12 * count(s)},
          .backward = {0, 16 * count(s)},
          .tolerance = 1e-6};  // normals are defined up to the rounding of f32
}

}  // namespace grt::cases
