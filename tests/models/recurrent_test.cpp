// What the recurrent models share: a pass step by step, what a look at it sees, and what may stand in the anchor's
// place.
#include "models/recurrent.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "models/mor.h"
#include "tests/models/toys.h"

namespace grt {
namespace {

constexpr std::int64_t kWidth = 12, kTime = 6;

Json toy(const std::string& architecture, const Json& keys = Json::object()) {
  Json json{{"architecture", architecture},
            {"vocab_size", 13},
            {"context_length", kTime},
            {"d_model", kWidth},
            {"n_heads", 3}};
  if (architecture == "dense")
    json["n_layers"] = 3;
  else
    json.update(Json{{"n_prelude", 1}, {"n_core", 2}, {"n_recurrences", 3}, {"n_coda", 1}});
  if (architecture == "grt") json["gate_bias"] = 0.0;
  json.update(keys);
  return json;
}

// With weights larger than a run begins with, so that every part of a model matters.
std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f64) {
  auto model = test::build(json, dtype);
  for (const Param& p : model->params().all())
    if (p.decayed()) test::cpu().kernels().multiply({p.var.value()}, p.var.value(), 10);
  return model;
}

using test::tokens;
using Seen = std::map<std::pair<std::string, int>, Tensor>;

// What a look at a pass to full depth sees; everything once.
Seen look_at(const LanguageModel& model, Pass pass, Tensor* z = nullptr) {
  Seen seen;
  const Look look = [&](std::string_view what, int step, const Tensor& value) {
    CHECK(seen.emplace(std::pair{std::string(what), step}, value.clone()).second);
  };
  pass.look = &look;
  const Tensor exit = model.hidden(tokens(2, kTime), model.depths().full, pass).value();
  if (z) *z = exit;
  return seen;
}

Tensor hidden(const LanguageModel& model, int depth, Reinjection reinjection) {
  return model.hidden(tokens(2, kTime), depth, {.reinjection = reinjection}).value().clone();
}

// The columns of a weight (d, 2d) that take the anchor.
void clear_right_half(LanguageModel& model, const char* name) {
  double* w = model.params().find(name)->var.value().data<double>();
  for (std::int64_t row = 0; row < kWidth; ++row)
    for (std::int64_t column = kWidth; column < 2 * kWidth; ++column) w[row * 2 * kWidth + column] = 0;
}

constexpr std::pair<const char*, const char*> kInjecting[] = {{"grt", "inject.weight"}, {"poisson", "adapter.weight"}};

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("a look changes nothing, and each model shows what it has, once, at the steps it has it") {
    const std::map<std::string, std::vector<std::string>> in_each_step = {{"dense", {}},
                                                                          {"grt", {"gate_logit", "input", "proposal"}},
                                                                          {"poisson", {"input", "proposal"}},
                                                                          {"mor", {"routed", "router_logit"}},
                                                                          {"rrt", {"input", "proposal"}},
                                                                          {"ouro", {"input", "proposal"}}};
    for (const auto& [architecture, names] : in_each_step) {
      CAPTURE(architecture);
      const auto model = build(toy(architecture));
      std::vector<std::pair<std::string, int>> expected = {{"embedding", 0}};
      if (architecture == "grt" || architecture == "poisson") expected.push_back({"anchor", 0});
      if (architecture == "ouro") expected.push_back({"exit_logit", 3});
      for (int step = architecture == "dense" ? 1 : 0; step <= 3; ++step) expected.push_back({"state", step});
      for (const std::string& name : names)
        for (int step = 1; step <= 3; ++step) expected.push_back({name, step});
      std::sort(expected.begin(), expected.end());

      Tensor z;
      std::vector<std::pair<std::string, int>> shown;
      for (const auto& [key, value] : look_at(*model, {}, &z)) shown.push_back(key);
      CHECK(shown == expected);
      CHECK(test::same_bits(z, model->hidden(tokens(2, kTime), 3, {}).value()));
    }
  }

  TEST_CASE("grt: a step that prepares the next one changes no bit of a pass or its gradients") {
    for (const Json& keys :
         {Json::object(), Json{{"gate_concat_norm", true}}, Json{{"use_injection", false}}, Json{{"state_noise", 0.0}}})
      for (const DType dtype : {DType::f32, DType::f64}) {
        CAPTURE(keys.dump());
        const auto model = build(toy("grt", keys), dtype);
        const auto& grt = dynamic_cast<const RecurrentModel&>(*model);
        const Pass pass{.training = true, .key = {3, 1, 0}};
        // `steps` is what exits() sets: told of none that follows, each step stands alone.
        const auto gradients = [&](int steps) {
          Pass told = pass;
          told.steps = steps;
          model->params().clear_gradients();
          Tape tape;
          Var z;
          {
            Record on(&tape);
            RecurrentModel::Unrolled u = grt.unroll(tokens(2, kTime), told);
            for (int r = 0; r < 3; ++r) u.h = u.step(u.h, r);
            z = grt.finish(u.h, 3, told);
          }
          const std::size_t recorded = tape.size();
          tape.backward(z, test::randn(z.shape(), 4, dtype));
          std::vector<Tensor> all{z.value()};
          for (const Param& p : model->params().all()) all.push_back(p.var.grad().clone());
          return std::pair(all, recorded);
        };
        const auto [together, fewer] = gradients(3);
        const auto [apart, more] = gradients(0);
        CHECK(fewer < more);
        REQUIRE(together.size() == apart.size());
        for (std::size_t i = 0; i < apart.size(); ++i) CHECK(test::same_bits(together[i], apart[i]));
        CHECK(test::same_bits(model->hidden(tokens(2, kTime), 3, pass).value(), apart[0]));
      }
  }

  TEST_CASE("grt: what a look sees makes up the update h = g h + (1 - g) o and the core's input") {
    const double tau = 0.8;
    const auto model = build(toy("grt", {{"gate_temperature", tau}}));
    const Seen seen = look_at(*model, {});
    const auto at = [&](const char* what, int step) { return test::values(seen.at({what, step})); };
    CHECK(at("anchor", 0) == at("state", 0));
    const Var w = Var(model->params().find("inject.weight")->var.value());
    for (int r = 1; r <= 3; ++r) {
      const auto old = at("state", r - 1), now = at("state", r), o = at("proposal", r), a = at("gate_logit", r);
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double g = 1 / (1 + std::exp(-a[i] / tau));
        CHECK(std::abs(now[i] - (g * old[i] + (1 - g) * o[i])) < 1e-6);  // tau is a float
      }
      const Var both = concat(seen.at({"state", r - 1}), seen.at({"anchor", 0}));
      CHECK(test::largest_difference(seen.at({"input", r}), linear(both, w).value()) < 1e-12);
    }
  }

  TEST_CASE("grt in training: the core's input has noise for each element, the gate for each token, new in each step") {
    constexpr double kStateNoise = 0.2, kGateNoise = 0.3, kTemperature = 1.5;
    const auto model = build(toy("grt", {{"use_injection", false},
                                         {"state_noise", kStateNoise},
                                         {"gate_noise", kGateNoise},
                                         {"gate_temperature", kTemperature}}));
    const Seen seen = look_at(*model, {.training = true, .key = {3, 4, 0}});
    const auto minus = [](const Tensor& a, const Tensor& b) {
      std::vector<double> x = test::values(a);
      const std::vector<double> y = test::values(b);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
      return x;
    };
    const auto rms = [](const std::vector<double>& x) {
      return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size()));
    };
    const auto correlation = [&](const std::vector<double>& x, const std::vector<double>& y) {
      return std::inner_product(x.begin(), x.end(), y.begin(), 0.0) / static_cast<double>(x.size()) / rms(x) / rms(y);
    };
    std::vector<std::vector<double>> of_state, of_gate;
    for (int r = 1; r <= 3; ++r) {
      const Tensor h = seen.at({"state", r - 1}), o = seen.at({"proposal", r});
      of_state.push_back(minus(seen.at({"input", r}), h));
      const std::vector<double> over = minus(seen.at({"state", r}), o), under = minus(h, o);
      const std::vector<double> logit = test::values(seen.at({"gate_logit", r}));
      of_gate.emplace_back();
      for (std::size_t i = 0; i < logit.size(); ++i) {
        const double g = over[i] / under[i], noise = std::log(g / (1 - g)) - logit[i] / kTemperature;
        if (i % kWidth == 0) of_gate.back().push_back(noise);
        CHECK(std::abs(noise - of_gate.back().back()) < 1e-6);
      }
    }
    for (int r = 0; r < 3; ++r) {
      CHECK(std::abs(rms(of_state[r]) / kStateNoise - 1) < 0.2);  // of 144 numbers
      CHECK(std::abs(rms(of_gate[r]) / kGateNoise - 1) < 0.6);    // of 12
      CHECK(std::abs(correlation(of_state[r], of_state[(r + 1) % 3])) < 0.3);
      CHECK(std::abs(correlation(of_gate[r], of_gate[(r + 1) % 3])) < 0.8);
      const std::vector<double>& noise = of_state[r];
      const std::size_t tokens = of_gate[r].size();
      CHECK(std::abs(correlation({noise.begin(), noise.begin() + tokens}, of_gate[r])) < 0.95);
      for (std::size_t column = 0; column < kWidth; ++column) {
        std::vector<double> of_column;
        for (std::size_t token = 0; token < tokens; ++token) of_column.push_back(noise[token * kWidth + column]);
        CHECK(std::abs(correlation(of_column, of_gate[r])) < 0.95);
      }
    }
  }

  TEST_CASE("poisson, rrt and ouro: the core's output is the next state, its input the state, with poisson's adapter") {
    for (const char* architecture : {"poisson", "rrt", "ouro"}) {
      CAPTURE(architecture);
      const auto model = build(toy(architecture));
      const Seen seen = look_at(*model, {});
      for (int r = 1; r <= 3; ++r) {
        const Tensor old = seen.at({"state", r - 1}), input = seen.at({"input", r});
        CHECK(test::same_bits(seen.at({"proposal", r}), seen.at({"state", r})));
        if (architecture != std::string("poisson")) {
          CHECK(test::same_bits(input, old));
          continue;
        }
        const Var w = Var(model->params().find("adapter.weight")->var.value());
        CHECK(test::largest_difference(input, linear(concat(old, seen.at({"anchor", 0})), w).value()) < 1e-12);
      }
    }
  }

  TEST_CASE("mor: a step changes the positions it is shown to take alone, k_r of them under top-k") {
    const auto model = build(toy("mor"));
    for (const bool causal : {false, true}) {
      const Seen seen = look_at(*model, {.causal_routing = causal});
      std::int64_t left_out = 0, chosen_among = 2 * kTime;
      for (int r = 1; r <= 3; ++r) {
        const Tensor routed = seen.at({"routed", r});
        if (!causal || r == 1) CHECK(routed.dim(1) == mor_capacity(kTime, causal ? 1 : r, 3));
        std::vector<bool> taken(2 * kTime);
        for (std::int64_t i = 0; i < routed.numel(); ++i)
          if (const auto t = routed.data<std::int32_t>()[i]; t >= 0) taken[i / routed.dim(1) * kTime + t] = true;
        if (!causal || r > 1) {
          const std::vector<double> logits = test::values(seen.at({"router_logit", r}));
          CHECK(static_cast<std::int64_t>(logits.size()) == chosen_among);
          chosen_among = std::count(taken.begin(), taken.end(), true);
          if (causal)
            CHECK(std::count_if(logits.begin(), logits.end(), [](double z) { return z > 0; }) == chosen_among);
        }
        for (std::int64_t i = 0; i < 2 * kTime; ++i) {
          const Tensor before = seen.at({"state", r - 1}).rows(i, 1), after = seen.at({"state", r}).rows(i, 1);
          CHECK(test::same_bits(before, after) == !taken[i]);
          left_out += !taken[i];
        }
      }
      CHECK(left_out > 0);
    }
  }

  TEST_CASE("a pass taken step by step, finished where one likes, has the exits' bits") {
    for (const char* architecture : {"grt", "poisson", "mor", "rrt", "ouro"})
      for (const bool causal : {false, true}) {
        CAPTURE(architecture);
        const auto model = build(toy(architecture), DType::f32);
        const auto& recurrent = dynamic_cast<const RecurrentModel&>(*model);
        const Pass pass{.causal_routing = causal};
        const RecurrentModel::Unrolled u = recurrent.unroll(tokens(2, kTime), pass);
        Var h = u.h;
        for (int r = 0; r < 3; ++r) {
          h = u.step(h, r);
          CHECK(test::same_bits(recurrent.finish(h, r + 1, pass).value(),
                                model->hidden(tokens(2, kTime), r + 1, pass).value()));
        }
      }
  }

  TEST_CASE("nothing in the anchor's place is a model whose weights for it are 0; grt's gate keeps it") {
    for (const auto& [architecture, weight] : kInjecting) {
      CAPTURE(architecture);
      const auto model = build(toy(architecture));
      const Tensor anchored = hidden(*model, 3, Reinjection::prelude), zero = hidden(*model, 3, Reinjection::zero);
      CHECK(test::same_bits(anchored, model->hidden(tokens(2, kTime), 3, {}).value()));
      CHECK(test::largest_difference(anchored, zero) > 1e-3);
      clear_right_half(*model, weight);
      CHECK(test::same_bits(zero, hidden(*model, 3, Reinjection::prelude)));
    }
  }

  TEST_CASE("the embedding in the anchor's place is the anchor of a model without a prelude, and of no other") {
    for (const auto& [architecture, weight] : kInjecting) {
      CAPTURE(architecture);
      const auto bare = build(toy(architecture, {{"n_prelude", 0}}));
      CHECK(test::same_bits(hidden(*bare, 3, Reinjection::embedding), hidden(*bare, 3, Reinjection::prelude)));
      const auto model = build(toy(architecture));
      CHECK_FALSE(test::same_bits(hidden(*model, 3, Reinjection::embedding), hidden(*model, 3, Reinjection::prelude)));
      const Seen seen = look_at(*model, {.reinjection = Reinjection::embedding});
      const Var w = Var(model->params().find(weight)->var.value());
      const Var both = concat(seen.at({"state", 2}), seen.at({"embedding", 0}));
      CHECK(test::largest_difference(seen.at({"input", 3}), linear(both, w).value()) < 1e-12);
    }
  }

  TEST_CASE("the state in the anchor's place enters twice, in grt's first step with the prelude's bits") {
    for (const auto& [architecture, weight] : kInjecting) {
      CAPTURE(architecture);
      const auto model = build(toy(architecture));
      const Seen seen = look_at(*model, {.reinjection = Reinjection::state});
      const Var w = Var(model->params().find(weight)->var.value());
      for (int r = 1; r <= 3; ++r) {
        const Var both = concat(seen.at({"state", r - 1}), seen.at({"state", r - 1}));
        CHECK(test::largest_difference(seen.at({"input", r}), linear(both, w).value()) < 1e-12);
      }
    }
    const auto grt = build(toy("grt"));
    CHECK(test::same_bits(hidden(*grt, 1, Reinjection::state), hidden(*grt, 1, Reinjection::prelude)));
    CHECK_FALSE(test::same_bits(hidden(*grt, 2, Reinjection::state), hidden(*grt, 2, Reinjection::prelude)));
  }

  TEST_CASE("a model into whose steps nothing is injected says so, and so does training") {
    for (const char* architecture : {"dense", "mor", "rrt", "ouro"}) {
      const auto model = build(toy(architecture));
      const std::string error = test::error_of([&] { hidden(*model, 3, Reinjection::zero); });
      CHECK(test::contains(error, std::string("reinjection: this ") + architecture + " model"));
    }
    const auto without = build(toy("grt", {{"use_injection", false}}));
    CHECK(test::contains(test::error_of([&] { hidden(*without, 3, Reinjection::state); }), "this grt model"));
    const auto model = build(toy("grt"));
    const Pass pass{.training = true, .reinjection = Reinjection::zero};
    CHECK(test::contains(test::error_of([&] { model->hidden(tokens(1, kTime), 1, pass); }), "in training"));
  }
}

}  // namespace grt
