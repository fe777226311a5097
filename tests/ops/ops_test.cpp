// Every row of the table of operations (ops/cases.h) in every way a row can be checked on the CPU.
#include "ops/ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "autograd/gradcheck.h"
#include "core/files.h"
#include "core/philox.h"
#include "core/threads.h"
#include "ops/case_makers.h"
#include "ops/cases.h"
#include "tests/support.h"

namespace grt {
namespace {

std::vector<Tensor> tensors(const std::vector<Var>& vars) {
  std::vector<Tensor> list;
  for (const Var& v : vars) list.push_back(v.value());
  return list;
}

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  return most;
}

// Largest difference, relative to the largest value.
double error(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(got[i] - expected[i]);
    most = d <= most ? most : d;  // a NaN stays
  }
  return most / std::max(largest(expected), 1e-30);
}

// The value and, for a differentiable case, the gradients under a random seed gradient.
std::vector<Tensor> evaluate(const OpCase& c, DType dtype, Device& device = test::cpu()) {
  const std::vector<Var> inputs = make_inputs(c, dtype, device);
  if (!c.differentiable) return {c.run(inputs).value()};
  Tape tape;
  Var out;
  {
    Record on(&tape);
    out = c.run(inputs);
  }
  std::vector<Tensor> results{out.value().clone()};
  tape.backward(out, test::randn(out.shape(), 77, dtype));
  for (const Var& v : inputs)
    if (v.has_grad()) results.push_back(v.grad());
  return results;
}

// Each operation at sizes drawn at random, from the edges of vectors and tiles as often as not.
std::vector<OpCase> random_cases(std::uint64_t seed) {
  using namespace cases;
  std::uint64_t draws = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random_below({seed, 0, 0}, draws++, static_cast<std::uint64_t>(n)));
  };
  const auto size = [&]() -> std::int64_t {
    constexpr std::int64_t kEdges[] = {1, 7, 17};
    return below(2) == 0 ? kEdges[below(3)] : 1 + below(70);
  };
  const auto plane = [&] { return Shape{size(), size()}; };
  const auto space = [&] { return Shape{1 + below(3), 1 + size(), size()}; };
  const int heads = static_cast<int>(1 + below(3));
  const std::int64_t vocab = 1 + size(), columns = size(), begin = below(columns), k = 1 + below(5);
  std::vector<OpCase> list{
      scale_case("", plane(), 0.7f),
      silu_case("", plane()),
      gelu_case("erf", plane(), Gelu::erf),
      gelu_case("tanh", plane(), Gelu::tanh),
      add_noise_case("", plane(), 0.3f),
      truncated_normal_case("", plane(), size()),
      add_case("", plane()),
      lerp_case("", plane(), 0.3f),
      concat_case("", plane(), size()),
      linear_case("", plane(), size(), below(2) == 0),
      linear_columns_case("", {size(), columns - begin}, size(), columns, begin, below(2) == 0),
      pair_case(plane(), size()),
      layernorm_case("", {size(), 4 + size()}, below(2) == 0),
      add_layernorm_case("", {size(), 4 + size()}, below(2) == 0),
      embedding_case("", {size(), size()}, vocab, vocab, 80, size(), below(9)),
      attention_case("", 1 + below(3), size(), heads * size(), heads),
      cached_attention_case("", 1 + below(3), size(), 1 + below(5), heads * size(), heads),
      cross_entropy_case("", plane(), vocab + below(9), vocab, 1 + below(5000)),
      distillation_case("", plane(), size(), vocab + below(9), vocab, {0.4, 2.0}, 1 + below(5000)),
      token_losses_case("", plane(), vocab + below(9), vocab, 1 + below(5000)),
      exit_distribution_case("", size(), 2 + below(7)),
      exit_loss_case("", size(), 2 + below(7), 0.1),
      exit_gate_loss_case("", size(), 2 + below(7)),
      expected_losses_case("", size(), 2 + below(7)),
      bce_with_logits_case("", plane()),
      top_k_case("", 1 + below(3), k + size(), k, below(2) == 0),
      gather_rows_case("", space()),
      gated_scatter_case("", space(), 0.6f),
      gate_mix_case("", plane(), 1.5f, 0.2f),
      gate_step_case("", {size(), 4 + size()}, 0.2f, below(2) == 0 ? 0 : 0.1f),
  };
  for (OpCase& c : list) c.variant += fmt::format("random {}", seed);
  return list;
}

TEST_SUITE("ops") {
  TEST_CASE("every operation of ops.h has a case, and no two cases share a name") {
    std::set<std::string> operations, names;
    for (const OpCase& c : op_cases()) {
      operations.insert(c.op);
      CHECK_MESSAGE(names.insert(c.name()).second, c.name());
    }
    // What ops.h declares, a function a line.
    std::istringstream header(read_file(std::filesystem::path(GRT_TEST_DIR) / "../ops/ops.h"));
    const std::regex declaration("(?:Var|Tensor|TopK|SumAndNorm|GateStep) (\\w+)\\(.*");
    std::set<std::string> declared;
    std::smatch match;
    for (std::string line; std::getline(header, line);)
      if (std::regex_match(line, match, declaration)) declared.insert(match[1]);
    declared.insert("add");  // operator+
    CHECK(operations == declared);
    std::set<std::string> timed;
    for (const OpCase& c : bench_cases()) timed.insert(c.op);
    CHECK(timed == operations);
  }

  TEST_CASE("the derivative of every case agrees with differences to 1e-6 in f64") {
    for (const OpCase& c : op_cases()) {
      if (!c.differentiable) continue;
      const std::vector<Var> inputs = make_inputs(c, DType::f64, test::cpu());
      std::vector<Checked> checked;
      for (const Var& v : inputs)
        if (v.wants_grad()) checked.push_back({fmt::format("input {}", checked.size()), v});
      const GradReport report = gradcheck([&] { return c.run(inputs); }, checked);
      CHECK_MESSAGE(report.worst <= 1e-6, c.name(), ": ", report.worst, " at ", report.where);
    }
  }

  TEST_CASE("every value agrees with the plain statement of the operation") {
    for (const OpCase& c : op_cases()) {
      const std::vector<Var> inputs = make_inputs(c, DType::f64, test::cpu());
      const std::vector<double> expected = c.reference(tensors(inputs));
      const double e = error(test::values(c.run(inputs).value()), expected);
      CHECK_MESSAGE(e <= c.tolerance, c.name(), ": ", e);
      CHECK_MESSAGE(largest(expected) > 1e-3, c.name(), ": nothing but zeros shows nothing");
    }
  }

  // Rounding of f32 inputs and sums of at most 139 terms: some 1e-6 of the largest.
  TEST_CASE("f32 gives the values and gradients of f64 to 1e-5") {
    for (const OpCase& c : op_cases()) {
      const std::vector<Tensor> narrow = evaluate(c, DType::f32), wide = evaluate(c, DType::f64);
      REQUIRE(narrow.size() == wide.size());
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const double e = error(test::values(narrow[i]), test::values(wide[i]));
        CHECK_MESSAGE(e <= 1e-5, c.name(), ": result ", i, ": ", e);
      }
    }
  }

  TEST_CASE("sizes drawn at random: every value is that of its statement, in f32 with its gradients to 1e-5") {
    std::set<std::string> drawn, operations;
    for (const OpCase& c : op_cases()) operations.insert(c.op);
    for (std::uint64_t seed = 0; seed < 12; ++seed)
      for (const OpCase& c : random_cases(seed)) {
        drawn.insert(c.op);
        const std::vector<Var> inputs = make_inputs(c, DType::f64, test::cpu());
        std::string shapes;
        for (const Var& v : inputs) shapes += fmt::format(" {}", v.shape());
        const double e = error(test::values(c.run(inputs).value()), c.reference(tensors(inputs)));
        CHECK_MESSAGE(e <= c.tolerance, c.name(), shapes, ": ", e);
        const std::vector<Tensor> narrow = evaluate(c, DType::f32), wide = evaluate(c, DType::f64);
        for (std::size_t i = 0; i < wide.size(); ++i) {
          const double rounding = error(test::values(narrow[i]), test::values(wide[i]));
          CHECK_MESSAGE(rounding <= 1e-5, c.name(), shapes, ": result ", i, ": ", rounding);
        }
      }
    CHECK(drawn == operations);
  }

  // The gradient of a weight that no row reached is zero.
  TEST_CASE("no row at all is no work") {
    using namespace cases;
    const Shape none{0, 7};
    const OpCase list[] = {scale_case("", none, 0.7f),
                           silu_case("", none),
                           gelu_case("", none, Gelu::erf),
                           add_noise_case("", none, 0.3f),
                           add_case("", none),
                           lerp_case("", none, 0.3f),
                           concat_case("", none, 3),
                           linear_case("", none, 17, true),
                           pair_case(none, 17),
                           layernorm_case("", none, true),
                           add_layernorm_case("", none, true),
                           gate_mix_case("", none, 1.5f, 0.2f),
                           gate_step_case("", none, 0.2f, 0.1f)};
    for (const OpCase& c : list)
      for (const DType dtype : {DType::f32, DType::f64}) {
        const std::vector<Tensor> results = evaluate(c, dtype);
        CHECK_MESSAGE(results.at(0).numel() == 0, c.op);
        for (const Tensor& gradient : results)
          for (const double v : test::values(gradient)) CHECK_MESSAGE(v == 0, c.op);
      }
  }

  TEST_CASE("1, 2 and 3 threads give the same bits") {
    for (const OpCase& c : op_cases()) {
      set_thread_count(1);
      const std::vector<Tensor> alone = evaluate(c, DType::f32);
      for (const int threads : {2, 3}) {
        set_thread_count(threads);
        const std::vector<Tensor> together = evaluate(c, DType::f32);
        for (std::size_t i = 0; i < alone.size(); ++i)
          CHECK_MESSAGE(test::same_bits(alone[i], together[i]), c.name(), ": result ", i, ", ", threads, " threads");
      }
    }
    set_thread_count(allowed_cpus());
  }

  // More threads than CPUs, so that chunks are dealt out and interrupted differently each time.
  TEST_CASE("the same bits come out every time while other threads keep all CPUs busy") {
    std::vector<OpCase> cases = bench_cases();
    std::erase_if(cases, [](const OpCase& c) { return !c.variant.starts_with("nano"); });
    REQUIRE(cases.size() > 20);
    const std::unique_ptr<Device> rounding = open_cpu(DType::bf16);
    Device* const devices[] = {&test::cpu(), rounding.get()};
    std::vector<std::vector<Tensor>> quiet;
    for (Device* device : devices)
      for (const OpCase& c : cases) quiet.push_back(evaluate(c, DType::f32, *device));
    std::atomic<bool> busy = true;
    std::vector<std::jthread> others(2 * allowed_cpus());
    for (std::jthread& other : others)
      other = std::jthread([&] {
        for (std::uint64_t n = 0; busy; ++n)
          if (n % 100'000 == 0) std::this_thread::yield();
      });
    set_thread_count(3);
    for (int round = 0; round < 2; ++round)
      for (std::size_t i = 0; i < quiet.size(); ++i) {
        const OpCase& c = cases[i % cases.size()];
        const std::vector<Tensor> loaded = evaluate(c, DType::f32, *devices[i / cases.size()]);
        for (std::size_t j = 0; j < loaded.size(); ++j)
          CHECK_MESSAGE(test::same_bits(loaded[j], quiet[i][j]), c.name(), ": result ", j);
      }
    busy = false;
    set_thread_count(allowed_cpus());
  }

  TEST_CASE("checkpoint() changes no bit of a value or gradient") {
    const std::vector<OpCase> cases = op_cases();
    int compared = 0;
    for (const OpCase& c : cases) {
      if (!c.variant.ends_with("recomputed")) continue;
      OpCase plain = c;  // of the same name, so the same inputs
      const auto original = std::find_if(cases.begin(), cases.end(), [&](const OpCase& o) {
        return c.name() == o.name() + (o.variant.empty() ? ": recomputed" : ", recomputed");
      });
      REQUIRE(original != cases.end());
      plain.run = original->run;
      const std::vector<Tensor> kept = evaluate(plain, DType::f32), again = evaluate(c, DType::f32);
      REQUIRE(kept.size() == again.size());
      for (std::size_t i = 0; i < kept.size(); ++i)
        CHECK_MESSAGE(test::same_bits(kept[i], again[i]), c.name(), ": result ", i);
      ++compared;
    }
    CHECK(compared > 40);
  }

  TEST_CASE("the cached attention of a sequence in pieces has the values of the whole") {
    const int heads = 3;
    const Tensor qkv = test::randn({1, 9, 36}, 4);
    const Tensor keys = Tensor::empty({1, heads, 9, 4}, DType::f64, test::cpu()), values = Tensor::like(keys);
    const Tensor whole = attention(Var(qkv), heads).value();
    std::int64_t past = 0;
    for (const std::int64_t n : {4, 1, 1, 3}) {
      const Tensor part = qkv.range(past * 36, {1, n, 36});
      const Tensor out = attention(Var(part), heads, keys, values, past).value();
      CHECK(test::largest_difference(out, whole.range(past * 12, {1, n, 12})) < 1e-13);
      past += n;
    }
  }

  TEST_CASE("the attention of runs is that of each sequence by itself, wherever its tokens stand in the batch") {
    const int heads = 3;
    const std::int64_t lengths[] = {9, 4, 6};
    std::vector<Tensor> qkv, whole;
    for (int s = 0; s < 3; ++s) {
      qkv.push_back(test::randn({1, lengths[s], 36}, 40 + s, DType::f32));
      whole.push_back(attention(Var(qkv[s]), heads).value());
    }
    const Tensor keys = Tensor::empty({3, heads, 9, 4}, DType::f32, test::cpu()), values = Tensor::like(keys);
    const std::vector<std::vector<TokenRun>> passes = {{{0, 0, 4}, {2, 0, 1}, {1, 0, 3}},
                                                       {{2, 1, 2}, {2, 3, 1}},
                                                       {{2, 4, 1}, {0, 4, 1}, {1, 3, 1}},
                                                       {{0, 5, 4}, {2, 5, 1}}};
    for (const std::vector<TokenRun>& runs : passes) {
      std::vector<float> rows;
      for (const TokenRun& run : runs) {
        const float* from = qkv[run.sequence].data<float>() + run.past * 36;
        rows.insert(rows.end(), from, from + run.count * 36);
      }
      const Tensor in = Tensor::from<float>({1, static_cast<std::int64_t>(rows.size()) / 36, 36}, rows, test::cpu());
      const Tensor out = attention(Var(in), heads, keys, values, runs).value();
      std::int64_t row = 0;
      for (const TokenRun& run : runs) {
        const Shape part{run.count, 12};
        CHECK(test::largest_difference(out.range(row * 12, part), whole[run.sequence].range(run.past * 12, part)) <
              1e-5);
        row += run.count;
      }
    }
  }

  TEST_CASE("a few tokens of a run have the bits they would have alone, and so have sequences side by side") {
    const Tensor qkv = test::randn({2, 9, 36}, 50, DType::f32);
    const auto through = [&](std::vector<std::vector<TokenRun>> passes) {
      const Tensor keys = Tensor::zeros({2, 3, 9, 4}, DType::f32, test::cpu()), values = Tensor::like(keys);
      const Tensor all = Tensor::empty({18, 12}, DType::f32, test::cpu());
      for (const std::vector<TokenRun>& runs : passes) {
        std::vector<float> rows;
        for (const TokenRun& run : runs) {
          const float* from = qkv.data<float>() + (run.sequence * 9 + run.past) * 36;
          rows.insert(rows.end(), from, from + run.count * 36);
        }
        const Tensor in = Tensor::from<float>({static_cast<std::int64_t>(rows.size()) / 36, 36}, rows, test::cpu());
        const Tensor out = attention(Var(in), 3, keys, values, runs).value();
        std::int64_t row = 0;
        for (const TokenRun& run : runs) {
          const Tensor to = all.rows(run.sequence * 9 + run.past, run.count);
          std::memcpy(to.raw(), out.rows(row, run.count).raw(), to.bytes());
          row += run.count;
        }
      }
      return all;
    };
    std::vector<std::vector<TokenRun>> one_by_one, level, few;
    for (std::int64_t t = 0; t < 9; ++t) {
      one_by_one.push_back({{1, t, 1}});
      one_by_one.push_back({{0, t, 1}});
      level.push_back({{0, t, 1}, {1, t, 1}});
    }
    few = {{{0, 0, kTokensAsAlone}, {0, kTokensAsAlone, 3}, {1, 0, 2}}, {{1, 2, 3}, {0, 7, 2}, {1, 5, kTokensAsAlone}}};
    const Tensor expected = through(one_by_one);
    CHECK(test::same_bits(through(level), expected));
    CHECK(test::same_bits(through(few), expected));
  }

  TEST_CASE("every case of the benchmark says how much work it is, in both directions") {
    for (const OpCase& c : bench_cases()) {
      CHECK_MESSAGE(c.forward.elements > 0, c.name());
      const bool passes = c.op == "add" || c.op == "add_noise";  // their gradients are their inputs', uncopied
      CHECK_MESSAGE((c.backward.elements > 0) == (c.differentiable && !passes), c.name());
    }
  }
}

}  // namespace
}  // namespace grt
