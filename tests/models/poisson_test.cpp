// `poisson`: its training depths, its initial state, and how far its gradients reach.
#include "models/poisson.h"

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "tests/models/toys.h"

namespace grt {
namespace {

Json toy(const Json& keys = Json::object()) {
  Json json{{"architecture", "poisson"}, {"vocab_size", 13}, {"context_length", 6}, {"d_model", 12}, {"n_heads", 3},
            {"n_recurrences", 4}};
  json.update(keys);
  return json;
}

std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f32) { return test::build(json, dtype); }

using test::tokens;

// How many operations the tape holds after a forward pass at `depth`.
std::size_t recorded_operations(const LanguageModel& model, int depth) {
  Tape tape;
  const Record on(&tape);
  model.loss(tokens(1, 6), tokens(1, 6), depth, {.training = true});
  return tape.size();
}

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("poisson depths have the reference's mean, spread, quantiles and probabilities") {
    constexpr int kDraws = 20000;
    const Json cases = read_json(test::fixture("modules.json").string())["poisson_lognormal_depth"]["cases"];
    REQUIRE(cases.size() == 4);
    for (const Json& c : cases) {
      const int R = c["R"];
      CAPTURE(R);
      const DepthRule rule{"poisson", 1, R};
      CHECK(rule.mean() == R);
      CHECK(rule.largest() == c["cap"].get<int>());
      std::vector<int> seen(rule.largest() + 1);
      double sum = 0, squares = 0;
      for (std::uint32_t step = 0; step < kDraws; ++step) {
        const int r = rule.draw({7, step, 0});
        REQUIRE(r == rule.draw({7, step, 0}));
        REQUIRE(r >= 1);
        REQUIRE(r <= rule.largest());
        ++seen[r];
        sum += r, squares += static_cast<double>(r) * r;
      }
      const double mean = sum / kDraws, std = c["std"];
      CHECK(std::abs(mean - c["mean"].get<double>()) < 5 * std / std::sqrt(kDraws));
      CHECK(std::sqrt(squares / kDraws - mean * mean) == doctest::Approx(std).epsilon(0.05));

      const auto share_up_to = [&](int r) {
        double n = 0;
        for (int i = 1; i <= r; ++i) n += seen[i];
        return n / kDraws;
      };
      for (const auto& [key, level] : {std::pair{"median", 0.5}, {"p95", 0.95}, {"p99", 0.99}}) {
        const int quantile = c[key];
        const double spread = 5 * std::sqrt(level * (1 - level) / kDraws);
        CHECK(share_up_to(quantile) > level - spread);
        CHECK(share_up_to(quantile - 1) < level + spread);
      }
      // The chi-square statistic has mean n and variance 2 n.
      const std::vector<double> prob = c["prob"];
      double rest = kDraws, rest_expected = kDraws, chi_square = 0;
      const auto add = [&](double count, double expected) {
        chi_square += (count - expected) * (count - expected) / expected;
      };
      for (std::size_t i = 0; i < prob.size(); ++i) {
        add(seen[i + 1], kDraws * prob[i]);
        rest -= seen[i + 1], rest_expected -= kDraws * prob[i];
      }
      if (rest_expected > 1) add(rest, rest_expected);
      const double n = static_cast<double>(prob.size());
      CHECK(chi_square < n + 5 * std::sqrt(2 * n));
    }
  }

  TEST_CASE("poisson depths of a very large mean keep it") {
    const DepthRule rule{"poisson", 1, 3000};
    double sum = 0;
    for (std::uint32_t step = 0; step < 2000; ++step) sum += rule.draw({7, step, 0});
    CHECK(sum / 2000 == doctest::Approx(3000).epsilon(5 * 0.533 / std::sqrt(2000)));  // sd / mean = sqrt(e^(1/4) - 1)
  }

  TEST_CASE("poisson depths need a mean of 2") {
    CHECK(test::contains(test::error_of([] {
                           DepthRule{"poisson", 1, 1}.check_valid(1);
                         }),
                         "--depth-sampler: poisson"));
    CHECK_NOTHROW(DepthRule{"poisson", 1, 2}.check_valid(1));
  }

  TEST_CASE("the initial values of the state have the moments of the reference, and none beyond the cut") {
    const Json expected = read_json(test::fixture("modules.json").string())["truncated_normal"];
    const double sigma = expected["sigma"];
    for (const DType type : {DType::f32, DType::f64}) {
      const Tensor t = truncated_normal({500, 400}, static_cast<float>(sigma), {3, 1, 4}, 7, type, test::cpu());
      const double n = 200000;
      double sum = 0, squares = 0, within = 0, largest = 0;
      for (const double x : test::values(t)) {
        sum += x, squares += x * x, within += std::abs(x) < sigma;
        largest = std::max(largest, std::abs(x));
      }
      const double std = expected["std_after_cut"], share = expected["prob_within_one_sigma"];
      CHECK(std::abs(sum / n) < 5 * std / std::sqrt(n));
      CHECK(std::sqrt(squares / n) == doctest::Approx(std).epsilon(5 / std::sqrt(2 * n)));
      CHECK(std::abs(within / n - share) < 5 * std::sqrt(share * (1 - share) / n));
      CHECK(largest <= expected["cut"].get<double>() * (1 + 1e-6));
      CHECK(largest > 0.99 * expected["cut"].get<double>());
    }
  }

  TEST_CASE("in evaluation the random state is a function of seed and position, in training of the pass's key") {
    const auto model = build(toy());
    const Tensor two = tokens(2, 6);
    const auto run = [&](const Tensor& in, const Pass& pass) { return model->hidden(in, 3, pass).value().clone(); };
    const Tensor once = run(two, {});
    CHECK(test::same_bits(once, run(two, {})));
    CHECK_FALSE(test::same_bits(once, run(two, {.key = {2, 0, 0}})));
    Pass later;
    later.key.pass = 5;
    CHECK(test::same_bits(once, run(two, later)));
    for (std::int64_t b = 0; b < 2; ++b) {
      const Tensor alone = run(two.rows(b, 1), {});
      CHECK(test::same_bits(alone, once.range(b * 72, {1, 6, 12})));
    }
    // The first four tokens are not told how many follow.
    CHECK(test::same_bits(run(two.range(0, {1, 4}), {}), once.range(0, {1, 4, 12})));

    const Pass training{.training = true, .key = {1, 0, 0}};
    CHECK(test::same_bits(run(two, training), run(two, training)));
    CHECK_FALSE(test::same_bits(run(two, training), run(two, {.training = true, .key = {2, 0, 0}})));
    const std::vector<std::int32_t> same(12, 3);
    const Tensor z = run(Tensor::from<std::int32_t>({2, 6}, same, test::cpu()), training);
    CHECK_FALSE(test::same_bits(z.range(0, {6, 12}), z.range(72, {6, 12})));

    const auto zero = build(toy({{"initial_state", "zero"}}));
    CHECK(test::same_bits(zero->hidden(two, 3, {}).value(), zero->hidden(two, 3, {.key = {2, 0, 0}}).value()));
    CHECK_FALSE(test::same_bits(zero->hidden(two, 3, {}).value(), once));
  }

  TEST_CASE("gradients reach back backprop_steps steps: deeper passes record no more operations") {
    const auto model = build(toy({{"backprop_steps", 2}}));
    CHECK(recorded_operations(*model, 1) < recorded_operations(*model, 2));
    CHECK(recorded_operations(*model, 2) == recorded_operations(*model, 3));
    CHECK(recorded_operations(*model, 2) == recorded_operations(*model, 30));
  }

  TEST_CASE("with as many backprop_steps as steps the whole gradient is the same, with fewer another") {
    const auto gradient = [](int backprop_steps) {
      const auto model = build(toy({{"backprop_steps", backprop_steps}}), DType::f64);
      model->params().clear_gradients();
      Tape tape;
      Var loss;
      {
        const Record on(&tape);
        loss = model->loss(tokens(2, 6), tokens(2, 6), 4, {});
      }
      const double one = 1;
      tape.backward(loss, Tensor::from<double>({1}, std::span(&one, 1), test::cpu()));
      model->params().complete_gradients();
      return model->params().gradients().clone();
    };
    CHECK(test::same_bits(gradient(4), gradient(8)));
    CHECK_FALSE(test::same_bits(gradient(3), gradient(4)));
  }
}

}  // namespace grt
