// `ouro`: the loss over its exits, and its exit gate.
#include <cmath>
#include <numeric>

#include "autograd/gradcheck.h"
#include "models/model.h"
#include "tests/models/toys.h"
#include "train/memory_plan.h"

namespace grt {
namespace {

Json toy(const Json& keys = Json::object()) {
  Json json{
      {"architecture", "ouro"}, {"vocab_size", 13}, {"padded_vocab_size", 16}, {"context_length", 6}, {"d_model", 12},
      {"n_heads", 3},           {"n_core", 2},      {"n_recurrences", 3}};
  json.update(keys);
  return json;
}

std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f64) { return test::build(json, dtype); }

using test::tokens;

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("ouro's loss is that of the exit its gate chooses, and of the mean exit less the entropy") {
    auto model = build(toy({{"entropy_weight", 0.25}}));
    const Tensor in = tokens(2, 6, 1), out = tokens(2, 6, 2);
    const auto set_gate = [&](double bias) {
      model->params().find("exit_gate.bias")->var.value().data<double>()[0] = bias;
    };
    const Tensor& weight = model->params().find("exit_gate.weight")->var.value();
    weight.device().zero(weight.raw(), weight.bytes());
    const auto loss = [&](int depth) { return test::values(model->loss(in, out, depth, {}).value())[0]; };
    std::vector<double> ce;
    for (int depth = 1; depth <= 3; ++depth) {
      const auto rows = test::values(model->losses(model->hidden(in, depth, {}).value(), out));
      ce.push_back(std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size()));
    }
    set_gate(50);
    CHECK(loss(3) == doctest::Approx(ce[0]).epsilon(1e-12));
    set_gate(-50);
    CHECK(loss(3) == doctest::Approx(ce[2]).epsilon(1e-12));
    CHECK(loss(2) == doctest::Approx(ce[1]).epsilon(1e-12));
    set_gate(0);  // 1/2, 1/4, 1/4
    const double expected = 0.5 * ce[0] + 0.25 * (ce[1] + ce[2]);
    CHECK(loss(3) == doctest::Approx(expected - 0.25 * 1.5 * std::log(2.0)).epsilon(1e-12));
    const auto rows = test::values(model->further_losses(in, out, {}).at("loss_expected"));
    CHECK(std::accumulate(rows.begin(), rows.end(), 0.0) / 12 == doctest::Approx(expected).epsilon(1e-12));
  }

  TEST_CASE("ouro's exit gate by itself: the model gets no gradient, the loss is a function of gates and losses") {
    auto model = build(toy());
    model->params().allocate_gradients("exit_gate.");
    const Tensor in = tokens(2, 6, 1), out = tokens(2, 6, 2);
    for (const bool recompute : {false, true}) {
      const Pass pass{.training = true, .recompute = recompute, .exit_gate_alone = true};
      std::vector<Checked> gate;
      for (const char* name : {"exit_gate.weight", "exit_gate.bias"})
        gate.push_back({name, model->params().find(name)->var});
      const GradReport report = gradcheck([&] { return model->loss(in, out, 3, pass); }, gate);
      CHECK_MESSAGE(report.worst <= 1e-5, report.where);
    }
    CHECK_FALSE(model->params().find("wte.weight")->var.wants_grad());

    std::vector<std::vector<double>> gates, losses;
    const auto weight = test::values(model->params().find("exit_gate.weight")->var.value());
    const double bias = test::values(model->params().find("exit_gate.bias")->var.value())[0];
    model->exits(in, std::vector<int>{1, 2, 3}, {}, [&](int, const Var& z) {
      losses.push_back(test::values(model->losses(z.value(), out)));
      gates.emplace_back(12, bias);
      const auto states = test::values(z.value());
      for (std::size_t i = 0; i < states.size(); ++i) gates.back()[i / 12] += states[i] * weight[i % 12];
    });
    double expected = 0;
    for (int t = 1; t < 3; ++t)
      for (int n = 0; n < 12; ++n) {
        const double w = 1 / (1 + std::exp(-50 * (std::max(0.0, losses[t - 1][n] - losses[t][n]) - 0.005)));
        const double stop = 1 / (1 + std::exp(-gates[t][n]));
        expected -= (w * std::log(1 - stop) + (1 - w) * std::log(stop)) / (3 * 12);
      }
    const Pass pass{.exit_gate_alone = true};
    CHECK(test::values(model->loss(in, out, 3, pass).value())[0] == doctest::Approx(expected).epsilon(1e-12));
  }

  TEST_CASE("the memory of ouro's loss does not grow by an exit's logits") {
    const auto activations = [](int exits) {
      MemoryNeeds needs{toy({{"n_recurrences", exits}, {"vocab_size", 4096}, {"padded_vocab_size", 4096}}),
                        DType::f32,
                        64,
                        {exits},
                        true};
      return plan_memory(needs).activations.at(exits);
    };
    const std::int64_t logits = 64 * 6 * 4096 * 4;
    CHECK(activations(8) - activations(4) < logits);
  }

  TEST_CASE("ouro's gate begins by stopping at each exit with probability 1/R") {
    const auto bias = [](int exits) {
      return test::values(build(toy({{"n_recurrences", exits}}))->params().find("exit_gate.bias")->var.value()).at(0);
    };
    CHECK(bias(1) == 0);
    CHECK(bias(2) == 0);
    CHECK(bias(5) == doctest::Approx(-std::log(4.0)).epsilon(1e-12));
  }
}

}  // namespace grt
