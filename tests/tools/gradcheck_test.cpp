// The gradcheck binary: derivatives against differences, and the gradients of a batch against reference values.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/json.h"
#include "core/safetensors.h"
#include "tests/support.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"

namespace grt {
namespace {

using test::contains;
using test::run_tool;

double largest(const Tensor& t) {
  double most = 0;
  for (const double v : test::values(t)) most = std::max(most, std::abs(v));
  return most;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

std::vector<std::string> write_arguments(const std::filesystem::path& model, const std::filesystem::path& output) {
  return {"--checkpoint", model.string(), "--data", (model / "tokens.bin").string(), "--output", output.string()};
}

// Each gradient in the file against the reference's: within `bound` of the largest magnitude in its tensor.
void compare_gradients(const std::filesystem::path& got_file, const std::filesystem::path& expected_file,
                       double bound) {
  const Safetensors got(got_file), expected(expected_file);
  CHECK(got.entries().size() == expected.entries().size());
  for (const auto& [name, entry] : expected.entries()) {
    CAPTURE(name);
    REQUIRE(got.contains(name));
    const Shape shape = entry.shape.size() == 1 ? Shape{entry.shape[0]} : Shape{entry.shape[0], entry.shape[1]};
    const Tensor a = Tensor::empty(shape, DType::f64, test::cpu()), b = Tensor::like(a);
    got.read(name, a);
    expected.read(name, b);
    CHECK(test::largest_difference(a, b) <= bound * largest(b));
    CHECK(largest(b) > 0);
  }
}

TEST_SUITE("tools") {
  TEST_CASE("gradcheck finds every operation's and model's derivative right") {
    const test::Outcome o = run_tool("gradcheck", {});
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK_FALSE(contains(o.out, "WRONG"));
    for (const char* part : {"attention: cache", "expected_losses", "top_k"})
      CHECK_FALSE(contains(o.out, part));  // no derivative
    for (const char* part :
         {"operations on cpu (", "  layernorm: bias", "dense:", "dense, bias, tanh:", "grt, recomputed:",
          "grt, gate_concat_norm:", "grt, no gate:", "grt, no injection:", "  gate.ln_concat.weight",
          "  core.1.mlp.c_fc.bias", "poisson:", "  adapter.weight", "mor:", "  router.2.weight", "  router.1.fc.weight",
          "rrt, recomputed:", "  lora.2.core.1.mlp.c_proj.B", "ouro, recomputed:", "  exit_gate.weight"})
      CHECK_MESSAGE(contains(o.out, part), part);
  }

  TEST_CASE("gradcheck --op checks that operation alone") {
    const test::Outcome o = run_tool("gradcheck", {"--op", "gelu"});
    CHECK(o.code == 0);
    CHECK(contains(o.out, "  gelu: tanh, many elements"));
    CHECK_FALSE(contains(o.out, "silu"));
    CHECK_FALSE(contains(o.out, "grt"));
  }

  TEST_CASE("gradcheck refuses what it cannot do in one line that names the flag") {
    const std::string dense = test::fixture("oracle/dense").string();
    const auto error = [](const std::vector<std::string>& arguments) {
      const test::Outcome o = run_tool("gradcheck", test::on_cpu(arguments));
      CHECK(o.code == 1);
      CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
      return o.err;
    };
    CHECK(contains(error({"--op", "softmax"}),
                   "--op: no operation \"softmax\"; there are add, add_layernorm, add_noise"));
    CHECK(contains(error({"--data", "x"}), "--data: has a meaning with --checkpoint alone"));
    CHECK(contains(error({"--dtype", "f32"}), "--dtype: has a meaning with --checkpoint alone"));
    CHECK(contains(error({"--checkpoint", dense}), "--data: --checkpoint needs"));
    CHECK(contains(error({"--checkpoint", dense, "--data", dense + "/tokens.bin"}), "--output: --checkpoint needs"));
    CHECK(contains(error({"--checkpoint", dense, "--op", "add"}), "--op: cannot be combined with --checkpoint"));

    const test::TempDir dir;
    std::vector<std::string> arguments = write_arguments(test::fixture("oracle/dense"), dir / "g.safetensors");
    const auto with = [&](const std::string& flag, const std::string& value) {
      std::vector<std::string> all = arguments;
      all.push_back(flag), all.push_back(value);
      return error(all);
    };
    CHECK(contains(with("--batch-size", "0"), "--batch-size: must be at least 1, not 0"));
    CHECK(contains(with("--batch-size", "7"), "holds 6 whole windows of 31 tokens, fewer than 7"));
    CHECK(contains(with("--depth", "4"), "depth 4: this model has exits at 1..3"));
    CHECK_FALSE(std::filesystem::exists(dir / "g.safetensors"));
  }

  TEST_CASE("gradcheck writes no gradients of a loss that is none") {
    const test::TempDir dir;
    const std::filesystem::path good = test::oracle("dense");
    const auto model = test::oracle_model("dense");
    std::vector<NamedTensor> tensors;
    for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value().clone()});
    tensors.back().tensor.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    std::filesystem::create_directories(dir / "bad");
    write_safetensors(dir / "bad/model.safetensors", tensors);
    for (const char* file : {"config.json", "tokens.bin"}) std::filesystem::copy_file(good / file, dir / "bad" / file);
    const test::Outcome o = run_tool("gradcheck", write_arguments(dir / "bad", dir / "g.safetensors"));
    CHECK(o.code == 1);
    CHECK(contains(o.err, "tokens.bin: the loss is nan; "));
    CHECK(contains(o.err, tensors.back().name));
    CHECK_FALSE(std::filesystem::exists(dir / "g.safetensors"));
  }

  TEST_CASE("the gradients of a batch are those of the reference") {
    for (const std::string& name : test::kOracleModels) {
      CAPTURE(name);
      const std::filesystem::path model = test::oracle(name);
      const Json expected = read_json((model / "expected.json").string())["gradients"];
      const test::TempDir dir;
      for (const auto& [dtype, bound] : {std::pair{"f64", 1e-6}, std::pair{"f32", 1e-4}}) {
        std::vector<std::string> arguments = write_arguments(model, dir / "g.safetensors");
        arguments.insert(arguments.end(), {"--dtype", dtype});
        const test::Outcome o = run_tool("gradcheck", arguments);
        REQUIRE_MESSAGE(o.code == 0, o.err);
        double loss = 0, norm = 0;
        REQUIRE(std::sscanf(last_line(o.out).c_str(), "loss %lf, gradient norm %lf", &loss, &norm) == 2);
        CHECK(std::abs(loss - expected["loss"].get<double>()) < bound);
        CHECK(norm == doctest::Approx(expected["grad_norm"].get<double>()).epsilon(bound));
        compare_gradients(dir / "g.safetensors", model / "grads.safetensors", bound);
      }
    }
  }

  TEST_CASE("gradcheck --depth differentiates the loss of that exit") {
    const std::filesystem::path model = test::fixture("oracle/dense");
    const test::TempDir dir;
    std::vector<std::string> arguments = write_arguments(model, dir / "g.safetensors");
    arguments.insert(arguments.end(), {"--depth", "1"});
    REQUIRE(run_tool("gradcheck", arguments).code == 0);
    const Safetensors file(dir / "g.safetensors");
    const Tensor used = Tensor::empty({24}, DType::f64, test::cpu()), unused = Tensor::like(used);
    file.read("h.0.ln_1.weight", used);
    file.read("h.1.ln_1.weight", unused);
    CHECK(largest(used) > 0);
    CHECK(largest(unused) == 0);
  }
}

}  // namespace
}  // namespace grt
