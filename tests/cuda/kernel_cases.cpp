#include "tests/cuda/kernel_cases.h"

#include <limits>
#include <utility>

#include "train/host.h"

namespace grt::test {
namespace {

using Outs = std::span<const Into>;
using Ins = std::span<const Tensor>;

// A case whose kernel returns nothing.
template <class F>
KernelCase of(std::string function, std::string variant, std::vector<KernelOutput> outputs,
              std::vector<CaseInput> inputs, F run) {
  return {std::move(function), std::move(variant), std::move(outputs), std::move(inputs),
          [run](Kernels& k, Outs out, Ins in) {
            run(k, out, in);
            return 0.0;
          }};
}

constexpr KernelOutput into(Shape s) { return {s, true}; }
constexpr KernelOutput plain(Shape s) { return {s}; }
constexpr KernelOutput added(Shape s) { return {s, true, true}; }

const Shape kSmall{2, 3, 5}, kWide{3, 411};

std::vector<KernelCase> elementwise() {
  return {
      of("add", "", {into(kWide)}, {{kWide}, {kWide}}, [](Kernels& k, Outs o, Ins i) { k.add(o[0], i[0], i[1]); }),
      of("copy", "", {into(kWide)}, {{kWide}}, [](Kernels& k, Outs o, Ins i) { k.copy(o[0], i[0]); }),
      of("scale", "", {into(kWide)}, {{kWide}, {{1}}}, [](Kernels& k, Outs o, Ins i) { k.scale(o[0], i[0], i[1]); }),
      of("lerp", "", {into(kWide)}, {{kWide}, {kWide}},
         [](Kernels& k, Outs o, Ins i) { k.lerp(o[0], i[0], i[1], 0.3f); }),
      of("multiply", "", {into(kWide)}, {{kWide}}, [](Kernels& k, Outs o, Ins i) { k.multiply(o[0], i[0], -1.5f); }),
      of("scale_rows", "", {into(kSmall)}, {{kSmall}, {{6}}},
         [](Kernels& k, Outs o, Ins i) { k.scale_rows(o[0], i[0], i[1]); }),
      of("add_noise", "", {plain(kWide)}, {{kWide}},
         [](Kernels& k, Outs o, Ins i) {
           k.add_noise(o[0].to, i[0], 0.3f, {7, 3, 5});
         }),
      of("truncated_normal", "", {plain({30, 50})}, {},
         [](Kernels& k, Outs o, Ins) {
           k.truncated_normal(o[0].to, 0.02f, {7, 3, 6}, 5);
         }),
      of("silu", "", {plain(kWide)}, {{kWide, 3}}, [](Kernels& k, Outs o, Ins i) { k.silu(o[0].to, i[0]); }),
      of("silu_backward", "", {into(kWide)}, {{kWide}, {kWide, 3}},
         [](Kernels& k, Outs o, Ins i) { k.silu_backward(o[0], i[0], i[1]); }),
      of("gelu", "erf", {plain(kWide)}, {{kWide, 3}},
         [](Kernels& k, Outs o, Ins i) { k.gelu(o[0].to, i[0], Gelu::erf); }),
      of("gelu", "tanh", {plain(kWide)}, {{kWide, 3}},
         [](Kernels& k, Outs o, Ins i) { k.gelu(o[0].to, i[0], Gelu::tanh); }),
      of("gelu_backward", "erf", {into(kWide)}, {{kWide}, {kWide, 3}},
         [](Kernels& k, Outs o, Ins i) { k.gelu_backward(o[0], i[0], i[1], Gelu::erf); }),
      of("gelu_backward", "tanh", {into(kWide)}, {{kWide}, {kWide, 3}},
         [](Kernels& k, Outs o, Ins i) { k.gelu_backward(o[0], i[0], i[1], Gelu::tanh); }),
      of("put_columns", "all of them", {plain({6, 5})}, {{{6, 2}}, {{6, 3}}},
         [](Kernels& k, Outs o, Ins i) {
           k.put_columns(o[0].to, 0, i[0]);
           k.put_columns(o[0].to, 2, i[1]);
         }),
      of("get_columns", "", {into({6, 3})}, {{{6, 7}}},
         [](Kernels& k, Outs o, Ins i) { k.get_columns(o[0], i[0], 2); }),
  };
}

std::vector<KernelCase> products() {
  const auto multiply = [](bool ta, bool tb, bool bias) {
    return [=](Kernels& k, Outs o, Ins i) { k.matmul(o[0], {}, {i[0], ta}, {i[1], tb}, bias ? i[2] : Tensor()); };
  };
  const auto backward = [](Kernels& k, Outs o, Ins i) { k.linear_backward(o[0], o[1], i[0], i[1], {i[2]}); };
  return {
      of("matmul", "", {into({7, 5})}, {{{7, 3}}, {{3, 5}}}, multiply(false, false, false)),
      of("matmul", "second transposed, bias", {into({7, 5})}, {{{7, 3}}, {{5, 3}}, {{5}}}, multiply(false, true, true)),
      of("matmul", "first transposed", {into({7, 5})}, {{{3, 7}}, {{3, 5}}}, multiply(true, false, false)),
      of("matmul", "both transposed", {into({67, 51})}, {{{33, 67}}, {{51, 33}}}, multiply(true, true, false)),
      of("matmul", "one row", {into({1, 5})}, {{{1, 3}}, {{3, 5}}}, multiply(false, false, false)),
      of("matmul", "one column, bias", {into({7, 1})}, {{{7, 3}}, {{1, 3}}, {{1}}}, multiply(false, true, true)),
      of("matmul", "no terms, bias", {into({7, 5})}, {{{7, 0}}, {{5, 0}}, {{5}}}, multiply(false, true, true)),
      of("matmul", "some columns of a factor", {into({4, 6})}, {{{4, 3}}, {{6, 9}}},
         [](Kernels& k, Outs o, Ins i) {
           k.matmul(o[0], {}, {i[0]}, {i[1], true, {5, 3}}, {});
         }),
      of("matmul", "into some columns", {added({6, 9})}, {{{4, 6}}, {{4, 3}}},
         [](Kernels& k, Outs o, Ins i) {
           k.matmul(o[0], {5, 3}, {i[0], true}, {i[1]}, {});
         }),
      of("matmul", "plus another matrix", {plain({7, 5})}, {{{7, 5}}, {{7, 3}}, {{5, 9}}},
         [](Kernels& k, Outs o, Ins i) {
           k.matmul_plus(o[0].to, i[0], {i[1]}, {i[2], true, {4, 3}});
         }),
      of("matmul", "backward", {into({4, 7, 3}), into({5, 3})}, {{{4, 7, 5}}, {{4, 7, 3}}, {{5, 3}}}, backward),
      of("matmul", "backward, no rows", {into({0, 3}), into({5, 3})}, {{{0, 5}}, {{0, 3}}, {{5, 3}}}, backward),
      of("matmul", "backward, some columns", {into({4, 3}), added({6, 9})}, {{{4, 6}}, {{4, 3}}, {{6, 9}}},
         [](Kernels& k, Outs o, Ins i) {
           k.linear_backward(o[0], o[1], i[0], i[1], {i[2], false, {5, 3}});
         }),
  };
}

// Products x (rows, k) with columns [begin, begin + k) of a packed weight (n, width), and its values.
std::vector<KernelCase> packed() {
  struct Size {
    std::int64_t rows, n, k, begin, width;
  };
  std::vector<KernelCase> all;
  for (const DType type : {DType::packed_f32, DType::packed_bf16, DType::packed_int8}) {
    const auto packed = [type](Kernels& k, const Tensor& w) {
      const Tensor p = Tensor::empty(w.shape(), type, w.device());
      k.pack(p, w);
      return p;
    };
    for (const Size& s : {Size{1, 13, 600, 0, 600}, Size{2, 9, 36, 4, 50}, Size{5, 70, 37, 3, 41}, Size{16, 3, 5, 0, 5},
                          Size{19, 7, 35, 2, 40}})
      all.push_back(of("matmul", fmt::format("{}, {} rows", name_of(type), s.rows), {into({s.rows, s.n})},
                       {{{s.rows, s.k}}, {{s.n, s.width}}, {{s.n}}}, [=](Kernels& k, Outs o, Ins i) {
                         const Tensor bias = s.begin > 0 ? i[2] : Tensor();
                         k.matmul(o[0], {}, {i[0]}, {packed(k, i[1]), true, {s.begin, s.k}}, bias);
                       }));
    all.push_back(of("matmul", fmt::format("{}, into some columns", name_of(type)), {added({3, 9})},
                     {{{3, 33}}, {{4, 33}}}, [=](Kernels& k, Outs o, Ins i) {
                       k.matmul(o[0], {5, 4}, {i[0]}, {packed(k, i[1]), true}, {});
                     }));
    all.push_back(of("pack", name_of(type), {plain({1, 5, 70})}, {{{1, 5}, 0, 9}, {{9, 70}}, {{8, 70}, 1e-3}},
                     [=](Kernels& k, Outs o, Ins i) { k.embedding(o[0].to, i[0], packed(k, i[1]), i[2], 3); }));
  }
  return all;
}

std::vector<KernelCase> reductions() {
  const auto number = [](std::string function, auto run) {
    return KernelCase{
        std::move(function), "", {}, {{{70, 131}}}, [run](Kernels& k, Outs, Ins i) { return run(k, i[0]); }};
  };
  return {
      of("sum_rows", "", {into({5})}, {{kSmall}}, [](Kernels& k, Outs o, Ins i) { k.sum_rows(o[0], i[0]); }),
      of("sum_rows", "many rows", {into({261})}, {{{1100, 261}}},
         [](Kernels& k, Outs o, Ins i) { k.sum_rows(o[0], i[0]); }),
      of("sum", "", {into({1})}, {{{70, 131}}}, [](Kernels& k, Outs o, Ins i) { k.sum(o[0], i[0], 0.25); }),
      of("sum", "few", {into({1})}, {{{3}}}, [](Kernels& k, Outs o, Ins i) { k.sum(o[0], i[0], 2); }),
      number("sum_squares", [](Kernels&, const Tensor& x) { return sum_squares(x); }),
      number("clip_scale",
             [](Kernels& k, const Tensor& x) {
               const Tensor squares = Tensor::empty({1}, DType::f64, x.device()), scale = Tensor::like(squares);
               double sum = 0;
               for (const double clip : {0.0, 1.0, 1e9}) {
                 k.sum_squares(squares, x);
                 k.clip_scale(scale, squares, clip);
                 sum += on_host<double>(scale)[0];
               }
               return sum;
             }),
      number("count_not_finite",
             [](Kernels& k, const Tensor& x) {
               const Tensor y = Tensor::like(x);
               k.copy({y}, x);
               k.multiply({y.range(40, {131})}, x.range(0, {131}), std::numeric_limits<float>::infinity());
               k.multiply({y.range(999, {17})}, x.range(0, {17}), std::numeric_limits<float>::quiet_NaN());
               return static_cast<double>(k.count_not_finite(y));
             }),
  };
}

std::vector<KernelCase> norms() {
  const auto forward = [](bool bias) {
    return [=](Kernels& k, Outs o, Ins i) {
      k.layernorm(o[0].to, o[1].to, o[2].to, i[0], i[1], bias ? i[2] : Tensor(), 1e-5f);
    };
  };
  const auto backward = [](Kernels& k, Outs o, Ins i) {
    const Tensor y = Tensor::like(i[1]), mean = Tensor::empty({i[1].shape().rows()}, DType::f32, y.device());
    const Tensor rstd = Tensor::like(mean);
    k.layernorm(y, mean, rstd, i[1], i[2], {}, 1e-5f);
    k.layernorm_backward(o[0], o[1], o[2], i[0], i[1], i[2], mean, rstd);
  };
  return {
      of("layernorm", "", {plain({7, 37}), plain({7}), plain({7})}, {{{7, 37}}, {{37}}}, forward(false)),
      of("layernorm", "bias", {plain({70, 19}), plain({70}), plain({70})}, {{{70, 19}}, {{19}}, {{19}}}, forward(true)),
      of("layernorm_backward", "", {into({7, 37}), into({37}), into({37})}, {{{7, 37}}, {{7, 37}}, {{37}}}, backward),
      of("layernorm_backward", "many rows", {into({70, 19}), into({19}), into({19})}, {{{70, 19}}, {{70, 19}}, {{19}}},
         backward),
      of("add_layernorm", "", {plain({7, 37}), plain({7, 37}), plain({7}), plain({7})},
         {{{7, 37}}, {{7, 37}}, {{37}}, {{37}}},
         [](Kernels& k, Outs o, Ins i) {
           k.add_layernorm(o[0].to, o[1].to, o[2].to, o[3].to, i[0], i[1], i[2], i[3], 1e-5f);
         }),
  };
}

std::vector<KernelCase> embeddings() {
  const auto backward = [](Kernels& k, Outs o, Ins i) { k.embedding_backward(o[0], o[1], i[0], i[1], 2); };
  return {
      of("embedding", "", {plain({2, 5, 37})}, {{{2, 5}, 0, 7}, {{9, 37}}, {{8, 37}}},
         [](Kernels& k, Outs o, Ins i) { k.embedding(o[0].to, i[0], i[1], i[2], 3); }),
      of("embedding_backward", "", {added({9, 37}), added({8, 37})}, {{{2, 5, 37}}, {{2, 5}, 0, 7}}, backward),
      of("embedding_backward", "many of one", {added({3, 5}), added({43, 5})}, {{{3, 41, 5}}, {{3, 41}, 0, 2}},
         backward),
  };
}

std::vector<KernelCase> attentions() {
  const auto forward = [](int heads) {
    return [=](Kernels& k, Outs o, Ins i) { k.attention(o[0].to, o[1].to, i[0], heads); };
  };
  const auto backward = [](int heads) {
    return [=](Kernels& k, Outs o, Ins i) {
      const Tensor out = Tensor::like(i[0]);
      const Tensor lse = Tensor::empty({out.dim(0), heads, out.dim(1)}, DType::f32, out.device());
      k.attention(out, lse, i[1], heads);
      k.attention_backward(o[0], i[0], i[1], out, lse, heads);
    };
  };
  // The cache holds what the inputs hold, so that what lies behind the sequence is checked to stay.
  const auto cached = [](std::int64_t past, int heads) {
    return [=](Kernels& k, Outs o, Ins i) {
      k.copy({o[1].to}, i[1]);
      k.copy({o[2].to}, i[2]);
      k.attention_cached(o[0].to, o[1].to, o[2].to, i[0], past, heads);
    };
  };
  const Shape cache{2, 3, 45, 4}, long_cache{2, 2, 265, 8}, odd_cache{1, 2, 265, 5}, wide_cache{1, 1, 140, 132};
  return {
      of("attention", "", {plain({2, 5, 12}), plain({2, 3, 5})}, {{{2, 5, 36}}}, forward(3)),
      of("attention", "several tiles", {plain({1, 71, 18}), plain({1, 2, 71})}, {{{1, 71, 54}}}, forward(2)),
      of("attention", "wide heads", {plain({1, 35, 130}), plain({1, 1, 35})}, {{{1, 35, 390}, 0.5}}, forward(1)),
      of("attention", "large scores", {plain({1, 35, 8}), plain({1, 2, 35})}, {{{1, 35, 24}, 12}}, forward(2)),
      of("attention_backward", "", {into({2, 5, 36})}, {{{2, 5, 12}}, {{2, 5, 36}}}, backward(3)),
      of("attention_backward", "several tiles", {into({1, 71, 54})}, {{{1, 71, 18}}, {{1, 71, 54}}}, backward(2)),
      of("attention_backward", "wide heads", {into({1, 35, 390})}, {{{1, 35, 130}}, {{1, 35, 390}, 0.5}}, backward(1)),
      of("attention_cached", "one token", {plain({2, 1, 12}), plain(cache), plain(cache)},
         {{{2, 1, 36}}, {cache}, {cache}}, cached(41, 3)),
      of("attention_cached", "many tokens", {plain({2, 37, 12}), plain(cache), plain(cache)},
         {{{2, 37, 36}}, {cache}, {cache}}, cached(6, 3)),
      of("attention_cached", "a long past", {plain({2, 5, 16}), plain(long_cache), plain(long_cache)},
         {{{2, 5, 48}, 3}, {long_cache}, {long_cache}}, cached(253, 2)),
      of("attention_cached", "a long past, odd heads", {plain({1, 1, 10}), plain(odd_cache), plain(odd_cache)},
         {{{1, 1, 30}}, {odd_cache}, {odd_cache}}, cached(256, 2)),
      of("attention_cached", "a long past, wide heads", {plain({1, 2, 132}), plain(wide_cache), plain(wide_cache)},
         {{{1, 2, 396}}, {wide_cache}, {wide_cache}}, cached(127, 1)),
      of("attention_cached", "empty", {plain({2, 4, 12}), plain(cache), plain(cache)}, {{{2, 4, 36}}, {cache}, {cache}},
         cached(0, 3)),
  };
}

std::vector<KernelCase> losses() {
  const auto in_place = [](Kernels& k, Outs o, Ins i) {
    k.copy({o[1].to}, i[0]);
    k.cross_entropy(o[0].to, {o[1].to}, o[1].to, i[1], 300, 0.7);
  };
  const auto distil = [](Distillation rule) {
    return [=](Kernels& k, Outs o, Ins i) { k.distillation(o[0].to, o[1], i[0], i[1], i[2], 300, rule, 0.7); };
  };
  const Shape logits{5, 320};
  return {
      of("cross_entropy", "", {plain({5}), into(logits)}, {{logits, 3}, {{5}, 0, 300}},
         [](Kernels& k, Outs o, Ins i) { k.cross_entropy(o[0].to, o[1], i[0], i[1], 300, 0.7); }),
      of("cross_entropy", "in place", {plain({5}), plain(logits)}, {{logits, 3}, {{5}, 0, 300}}, in_place),
      of("distillation", "", {plain({5}), into(logits)}, {{logits, 3}, {{5, 310}, 3}, {{5}, 0, 300}},
         distil({0.3, 1.7})),
      of("distillation", "the teacher alone", {plain({5}), into(logits)}, {{logits}, {{5, 310}}, {{5}, 0, 300}},
         distil({1, 0.8})),
      of("bce_with_logits", "", {plain(kWide)}, {{kWide, 9}, {kWide}},
         [](Kernels& k, Outs o, Ins i) { k.bce_with_logits(o[0].to, i[0], i[1]); }),
      of("bce_with_logits_backward", "", {into(kWide)}, {{{1}}, {kWide, 9}, {kWide}},
         [](Kernels& k, Outs o, Ins i) { k.bce_with_logits_backward(o[0], i[0], i[1], i[2], 0.3); }),
  };
}

// (B, k): every other place, from 0 and from 1 in turn.
Tensor every_other(std::int64_t batch, std::int64_t k, Device& device) {
  std::vector<std::int32_t> places;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < k; ++i) places.push_back(static_cast<std::int32_t>(2 * i + b % 2));
  return Tensor::from<std::int32_t>({batch, k}, places, device);
}

std::vector<KernelCase> routes() {
  const Shape x{3, 41, 37}, named{3, 20, 37}, gates{3, 20, 1};
  const KernelOutput index{{3, 20}, false, false, true};
  return {
      of("top_k", "", {index, plain({3, 41})}, {{{3, 41}}},
         [](Kernels& k, Outs o, Ins i) { k.top_k(o[0].to, o[1].to, i[0]); }),
      of("top_k", "equal scores and NaNs", {index, plain({3, 41})}, {{{3, 41}}},
         [](Kernels& k, Outs o, Ins i) {
           const Tensor scores = Tensor::zeros({3, 41}, DType::f32, i[0].device());
           k.multiply({scores.range(3, {20})}, i[0].range(0, {20}), std::numeric_limits<float>::infinity());
           k.multiply({scores.range(41, {20})}, i[0].range(0, {20}), std::numeric_limits<float>::quiet_NaN());
           k.top_k(o[0].to, o[1].to, scores);
         }),
      of("gather_rows", "", {plain(named)}, {{x}},
         [](Kernels& k, Outs o, Ins i) { k.gather_rows(o[0].to, i[0], every_other(3, 20, i[0].device())); }),
      of("gather_rows", "i32", {{named, false, false, true}}, {{x, 0, 99}},
         [](Kernels& k, Outs o, Ins i) { k.gather_rows(o[0].to, i[0], every_other(3, 20, i[0].device())); }),
      of("gather_rows_backward", "", {added(x)}, {{named}},
         [](Kernels& k, Outs o, Ins i) { k.gather_rows_backward(o[0], i[0], every_other(3, 20, i[0].device())); }),
      of("gated_scatter", "", {plain(x)}, {{x}, {gates}, {named}},
         [](Kernels& k, Outs o, Ins i) {
           k.gated_scatter(o[0].to, i[0], every_other(3, 20, i[0].device()), i[1], i[2], -1.5f);
         }),
      of("gated_scatter_backward", "", {into(gates), into(named)}, {{x}, {gates}, {named}},
         [](Kernels& k, Outs o, Ins i) {
           k.gated_scatter_backward(o[0], o[1], i[0], every_other(3, 20, i[0].device()), i[1], i[2], -1.5f);
         }),
  };
}

// Of a gated update and what the next step reads; backward with those of the gradients of y, noisy and normed that
// `faces` names.
KernelCase gate_step_case(const char* variant, Shape s, bool noisy) {
  const Shape row{s.rows()};
  return of("gate_step", variant, {plain(s), plain(s), plain(s), plain(row), plain(row)},
            {{s, 3}, {s}, {s}, {{s.last()}}}, [=](Kernels& k, Outs o, Ins i) {
              const NextState next{o[0].to, noisy ? o[1].to : Tensor(), o[2].to, o[3].to, o[4].to};
              k.gate_step(next, i[0], i[1], i[2], i[3], {0.8f, 0.3f, {11, 2, 9}}, {0.2f, {11, 2, 10}}, 1e-5f);
            });
}
KernelCase gate_step_backward_case(std::string_view faces, Shape s) {
  return of("gate_step_backward", std::string(faces), {into(s), into(s), into(s), into({s.last()})},
            {{s, 3}, {s}, {s}, {{s.last()}}, {s}, {s}, {s}}, [=](Kernels& k, Outs o, Ins i) {
              const GateNoise noise{0.8f, 0.3f, {11, 2, 9}};
              const Tensor mean = Tensor::empty({s.rows()}, DType::f32, i[0].device());
              const NextState next{Tensor::like(i[0]), {}, Tensor::like(i[0]), mean, Tensor::like(mean)};
              k.gate_step(next, i[0], i[1], i[2], i[3], noise, {}, 1e-5f);
              const auto if_named = [&](const char* face, const Tensor& d) {
                return faces.find(face) == faces.npos ? Tensor() : d;
              };
              const NextStateGradients d{if_named("state", i[4]), if_named("noisy", i[5]), if_named("normed", i[6])};
              k.gate_step_backward(o[0], o[1], o[2], d.normed ? o[3] : Into{}, d, next, i[0], i[1], i[2], i[3], noise);
            });
}

std::vector<KernelCase> recurrences() {
  const GateNoise quiet{0.8f, 0, {}}, noisy{0.8f, 0.3f, {11, 2, 9}};
  const Shape s{7, 37}, exits{70, 6};
  std::vector<KernelCase> all;
  for (const GateNoise& noise : {quiet, noisy}) {
    const char* const variant = noise.sigma == 0 ? "" : "noise";
    all.push_back(of("gate_mix", variant, {plain(s)}, {{s, 3}, {s}, {s}},
                     [=](Kernels& k, Outs o, Ins i) { k.gate_mix(o[0].to, i[0], i[1], i[2], noise); }));
    all.push_back(
        of("gate_mix_backward", variant, {into(s), into(s), into(s)}, {{s}, {s, 3}, {s}, {s}},
           [=](Kernels& k, Outs o, Ins i) { k.gate_mix_backward(o[0], o[1], o[2], i[0], i[1], i[2], i[3], noise); }));
  }
  all.push_back(gate_step_case("", s, false));
  all.push_back(gate_step_case("noise", {70, 19}, true));
  all.push_back(gate_step_backward_case("state, noisy, normed", {70, 19}));
  for (const char* faces : {"state, normed", "noisy, normed", "state, noisy", "normed"})
    all.push_back(gate_step_backward_case(faces, s));
  all.push_back(of("exit_distribution", "", {plain(exits)}, {{exits, 2}},
                   [](Kernels& k, Outs o, Ins i) { k.exit_distribution(o[0].to, i[0]); }));
  all.push_back(of("exit_loss", "", {plain({70})}, {{exits, 2}, {exits}},
                   [](Kernels& k, Outs o, Ins i) { k.exit_loss(o[0].to, i[0], i[1], 0.3); }));
  all.push_back(of("exit_loss_backward", "", {into(exits), into(exits)}, {{{1}}, {exits, 2}, {exits}},
                   [](Kernels& k, Outs o, Ins i) { k.exit_loss_backward(o[0], o[1], i[0], i[1], i[2], 0.3); }));
  all.push_back(of("exit_gate_loss", "", {plain({70})}, {{exits, 2}, {exits, 0.05}},
                   [](Kernels& k, Outs o, Ins i) { k.exit_gate_loss(o[0].to, i[0], i[1]); }));
  all.push_back(of("exit_gate_loss_backward", "", {into(exits)}, {{{1}}, {exits, 2}, {exits, 0.05}},
                   [](Kernels& k, Outs o, Ins i) { k.exit_gate_loss_backward(o[0], i[0], i[1], i[2]); }));
  all.push_back(of("adamw", "", {plain(kWide), plain(kWide), plain(kWide)}, {{kWide}, {kWide}, {kWide}, {kWide}},
                   [](Kernels& k, Outs o, Ins i) {
                     const Shape column{i[2].numel(), 1};
                     AdamW step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.7, 1 / (1 - 0.9), 1 / (1 - 0.95)};
                     k.copy({o[0].to}, i[0]);
                     k.copy({o[1].to}, i[1]);
                     k.scale_rows({o[2].to.view(column)}, i[2].view(column), i[2]);  // squares
                     k.adamw(o[0].to, o[1].to, o[2].to, i[3], step);
                     step.grad_scale = std::numeric_limits<double>::quiet_NaN();
                     k.adamw(o[0].to, o[1].to, o[2].to, i[3], step);  // changes nothing
                   }));
  return all;
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> all;
  for (auto& family : {elementwise(), products(), packed(), reductions(), norms(), embeddings(), attentions(), losses(),
                       routes(), recurrences()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace grt::test
