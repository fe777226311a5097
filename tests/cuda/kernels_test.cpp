// Every kernel and every operation on emulated CUDA against the CPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "core/files.h"
#include "ops/cases.h"
#include "tests/cuda/kernel_cases.h"
#include "tests/cuda/modes.h"
#include "tests/support.h"

namespace grt {
namespace {

using test::KernelCase;
using test::KernelOutput;

constexpr std::int64_t kMargin = 8;  // sentinels before and behind an output

// What a kernel left in its outputs with the sentinels around them, and the number it returned.
struct Results {
  std::vector<std::vector<double>> outputs;
  double number = 0;
};

// What is asked of the outputs that may be absent or be added to.
using Which = std::function<bool(std::size_t output)>;
bool all(std::size_t) { return true; }
bool none(std::size_t) { return false; }
struct Asked {
  std::string name;
  Which adds = none, wanted = all;
};

Results run(const KernelCase& c, Device& device, const Asked& asked) {
  const OpCase inputs{.op = c.function, .variant = c.variant, .inputs = c.inputs, .differentiable = false};
  std::vector<Tensor> in, whole;
  for (const Var& v : make_inputs(inputs, DType::f32, device)) in.push_back(v.value());
  std::vector<Into> out;
  for (const KernelOutput& o : c.outputs) {
    const std::int64_t n = o.shape.numel() + 2 * kMargin;
    const bool adds = o.adds || (o.into && asked.adds(out.size())), present = !o.into || asked.wanted(out.size());
    if (o.integer)
      whole.push_back(Tensor::from<std::int32_t>({n}, std::vector<std::int32_t>(n, -7), device));
    else
      whole.push_back(Tensor::from<float>({n}, std::vector<float>(n, adds ? 2.5f : -7), device));
    out.push_back({present ? whole.back().range(kMargin, o.shape) : Tensor(), adds});
  }
  Results results;
  results.number = c.run(device.kernels(), out, in);
  for (const Tensor& t : whole) results.outputs.push_back(test::values(t));
  return results;
}

// The largest difference relative to the largest value; infinite where one is no number and the other is.
double error(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    const double difference = got[i] == expected[i] ? 0 : std::abs(got[i] - expected[i]);
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
    if (std::isfinite(expected[i])) largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / std::max(largest, 1e-30);
}

// What is wrong with the device's results, a line each; "" if nothing is.
std::string compare(const KernelCase& c, Device& device, Device& cpu, const Asked& asked) {
  const Results got = run(c, device, asked), expected = run(c, cpu, asked);
  std::string wrong;
  const auto complain = [&](const std::string& what) {
    wrong += fmt::format("{}, {}: {}\n", c.name(), asked.name, what);
  };
  if (!(std::abs(got.number - expected.number) <= 1e-12 * std::abs(expected.number))) complain("the number");
  for (std::size_t i = 0; i < got.outputs.size(); ++i)
    if (const double e = error(got.outputs[i], expected.outputs[i]); !(e <= 1e-5))
      complain(fmt::format("output {} is off by {:.2g}", i, e));
  return wrong;
}

// All results stored, all added to, and each of several alone, left out, and alone in being added to.
std::string complaints(const KernelCase& c, Device& device, Device& cpu = test::cpu()) {
  const auto optional = static_cast<std::size_t>(
      std::count_if(c.outputs.begin(), c.outputs.end(), [](const KernelOutput& o) { return o.into; }));
  std::vector<Asked> all_asked = {{"all stored"}};
  if (optional > 0) all_asked.insert(all_asked.end(), {{"all added", all}, {"none", none, none}});
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    if (!c.outputs[i].into || optional == 1) continue;
    const Which it = [i](std::size_t k) { return k == i; }, others = [i](std::size_t k) { return k != i; };
    all_asked.push_back({fmt::format("{} alone stored", i), none, it});
    all_asked.push_back({fmt::format("all but {} added", i), all, others});
    all_asked.push_back({fmt::format("{} alone added, others stored", i), it});
  }
  std::string wrong;
  for (const Asked& asked : all_asked) wrong += compare(c, device, cpu, asked);
  return wrong;
}

// The value and, for a differentiable case, the gradients under a seed gradient.
std::vector<std::vector<double>> evaluate(const OpCase& c, Device& device) {
  const std::vector<Var> inputs = make_inputs(c, DType::f32, device);
  if (!c.differentiable) return {test::values(c.run(inputs).value())};
  Tape tape;
  Var out;
  {
    Record on(&tape);
    out = c.run(inputs);
  }
  std::vector<std::vector<double>> results{test::values(out.value())};
  const Tensor seed = test::randn(out.shape(), 77, DType::f32), there = Tensor::empty(out.shape(), DType::f32, device);
  device.copy(there.raw(), seed.raw(), seed.bytes());
  tape.backward(out, there);
  for (const Var& v : inputs)
    if (v.has_grad()) results.push_back(test::values(v.grad()));
  return results;
}

using Outputs = std::span<const Into>;
using Inputs = std::span<const Tensor>;
using OnDevice = std::function<void(const KernelCase& right, Kernels& k, Outputs out, Inputs in)>;

// What is complained of if the device computes the first case of `function` in another way, and the CPU rightly.
std::string complaints_of(const std::string& function, const OnDevice& way) {
  test::Emulated emulated({});
  const std::vector<KernelCase> cases = test::kernel_cases();
  const auto right =
      std::find_if(cases.begin(), cases.end(), [&](const KernelCase& c) { return c.function == function; });
  REQUIRE(right != cases.end());
  KernelCase c = *right;
  c.run = [&](Kernels& k, Outputs out, Inputs in) {
    if (&k == &test::cpu().kernels()) return right->run(k, out, in);
    way(*right, k, out, in);
    return 0.0;
  };
  return complaints(c, emulated.device());
}

TEST_SUITE("cuda") {
  TEST_CASE("every kernel of the contract has a case, and no case is of another") {
    const std::string contract = read_file(test::fixture("../../ops/kernels.h").string());
    std::set<std::string> functions, cases;
    const std::regex declaration(R"(virtual [\w:]+ (\w+)\([^;]*\) = 0;)");
    for (std::sregex_iterator i(contract.begin(), contract.end(), declaration), end; i != end; ++i)
      functions.insert((*i)[1]);
    for (const KernelCase& c : test::kernel_cases()) cases.insert(c.function);
    CHECK(functions.size() > 35);
    CHECK(functions == cases);
  }

  // Sums of up to 1100 terms of f32, in another order than the CPU's: some 1e-6 of the largest.
  TEST_CASE("every kernel gives what the CPU gives to 1e-5, stored and added, and writes nothing else") {
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode);
      for (const KernelCase& c : test::kernel_cases()) CHECK(complaints(c, emulated.device()) == "");
    }
  }

  // Of what every kernel is compared with, these are the tests: the CPU does right, the device one thing wrong.
  TEST_CASE("a kernel that mistakes storing for adding, misses an end or passes it is noticed") {
    const float s = -1.5f;  // as in the case
    const auto said = [&](const std::function<void(Kernels&, const Into&, const Tensor&)>& wrong) {
      return complaints_of("multiply", [&](const KernelCase&, Kernels& k, Outputs out, Inputs in) {
        if (out[0]) wrong(k, out[0], in[0]);
      });
    };
    CHECK(said([&](Kernels& k, const Into& y, const Tensor& x) { k.multiply(y, x, s); }) == "");
    CHECK(test::contains(said([&](Kernels& k, const Into& y, const Tensor& x) { k.multiply({y.to}, x, s); }), "added"));
    CHECK(test::contains(said([&](Kernels& k, const Into& y, const Tensor& x) {
                           k.multiply({y.to, true}, x, s);
                         }),
                         "stored"));
    CHECK(said([&](Kernels& k, const Into& y, const Tensor& x) {
            const Shape shorter{y.to.numel() - 1};
            k.multiply({y.to.range(0, shorter), y.add}, x.range(0, shorter), s);
          }) != "");
    CHECK(said([&](Kernels& k, const Into& y, const Tensor& x) {
            k.multiply(y, x, s);
            y.to.device().zero(y.to.data<float>() + y.to.numel(), sizeof(float));
          }) != "");
  }

  TEST_CASE("a kernel that adds to one output because it should add to another is noticed") {
    const auto said = [&](bool wrong) {
      return complaints_of("layernorm_backward", [&](const KernelCase& right, Kernels& k, Outputs out, Inputs in) {
        std::vector<Into> mistaken(out.begin(), out.end());
        if (wrong) mistaken[2].add = out[1].add;
        right.run(k, mistaken, in);
      });
    };
    CHECK(said(false) == "");
    CHECK(test::contains(said(true), "1 alone added"));
  }

  TEST_CASE("products of bf16 factors are the CPU's to 1e-5, stored and added") {
    const std::unique_ptr<Device> cpu = open_cpu(DType::bf16);
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode, DType::bf16);
      for (const KernelCase& c : test::kernel_cases())
        if (c.function == "matmul") CHECK(complaints(c, emulated.device(), *cpu) == "");
    }
  }

  TEST_CASE("every operation gives the value and the gradients of the CPU to 1e-5") {
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode);
      for (const OpCase& c : op_cases()) {
        CAPTURE(c.name());
        const auto got = evaluate(c, emulated.device()), expected = evaluate(c, test::cpu());
        REQUIRE(got.size() == expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double e = error(got[i], expected[i]);
          CHECK_MESSAGE(e <= 1e-5, "result ", i, ": ", e);
        }
      }
    }
  }

  TEST_CASE("the truncated normals are those of core/philox.h, bit for bit") {
    test::Emulated emulated({});
    const NoiseKey key{7, 3, 6};
    const Tensor y = truncated_normal({300, 50}, 1, key, 5, DType::f32, emulated.device());
    const std::vector<double> got = test::values(y);
    int redrawn = 0;
    for (std::uint64_t i = 0; i < got.size(); ++i) {
      const std::uint64_t row = 5 + i / 50, column = i % 50;
      CHECK(got[i] == static_cast<double>(random_truncated_normal(key, row, column)));
      redrawn += std::abs(random_normal(key, row << 32 | column)) > kNormalCut;
    }
    CHECK(redrawn > 10);
  }

  TEST_CASE("orders of threads and blocks change no bit") {
    std::vector<std::vector<std::vector<double>>> results;
    for (const emu::Order order : {emu::Order::forward, emu::Order::reverse, emu::Order::random}) {
      test::Emulated emulated({order, emu::Streams::eager, false, true});
      results.emplace_back();
      for (const KernelCase& c : test::kernel_cases())
        for (auto& output : run(c, emulated.device(), {"all added", all}).outputs)
          results.back().push_back(std::move(output));
    }
    const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
    };
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      CHECK(same(results[0][i], results[1][i]));
      CHECK(same(results[0][i], results[2][i]));
    }
  }
}

}  // namespace
}  // namespace grt
