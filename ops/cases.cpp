// The sizes for checks are such that tiles, vectors and chunks end in their midst.
#include "ops/cases.h"

#include "core/philox.h"
#include "core/threads.h"
#include "ops/case_makers.h"

namespace grt {
namespace {

using std::int64_t;
using Vars = std::span<const Var>;
using Tensors = std::span<const Tensor>;

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
    std::vector<double> y = reference(t);
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
  using namespace cases;
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
      add_layernorm_case("", small, false),
      add_layernorm_case("bias", small, true),
      add_layernorm_case("many rows", {70, 19}, true),
      same_input(add_layernorm_case("", {7}, true)),
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
      distillation_case("", {2, 3, 5}, 7, 16, 11, {0.5, 1}),
      distillation_case("the teacher alone, temperature", {2, 3, 5}, 7, 16, 11, {1, 2.5}),
      distillation_case("no teacher", {2, 3, 5}, 7, 16, 11, {0, 2}),
      distillation_case("chunks of one row", {7, 5}, 3, 16, 11, {0.3, 0.7}, 1),
      distillation_case("several chunks, the last shorter", {2, 9, 5}, 6, 67, 67, {0.7, 2}, 5 * 67 * 4),
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
      gate_step_case("", small, 0, 0),
      gate_step_case("noise", wide, 0.3f, 0.2f),
      gate_step_case("noise, many rows", {70, 19}, 0.3f, 0.2f),
      same_input(gate_step_case("", {7}, 0, 0.2f)),
  };
}

struct Size {
  const char* name;
  int64_t batch, time, width;
  int heads;
  int64_t padded, vocab;
};

std::vector<OpCase> cases_at(const Size& s) {
  using namespace cases;
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
      add_layernorm_case(at(""), x, false),
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
      gate_step_case(at("noise"), x, 0.1f, 0.1f),
  };
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
    const NoiseKey key{1, site_of(c.name()), static_cast<std::uint32_t>(vars.size())};
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
