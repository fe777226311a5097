// `mor`: how many tokens each step takes, the loss that trains the routers, and the causal rule.
#include "models/mor.h"

#include "core/json.h"
#include "tests/models/toys.h"

namespace grt {
namespace {

Json toy(const Json& keys = Json::object()) {
  Json json{{"architecture", "mor"}, {"vocab_size", 13}, {"context_length", 12},
            {"d_model", 12},         {"n_heads", 3},     {"n_recurrences", 3}};
  json.update(keys);
  return json;
}

// With weights larger than a run begins with, so that the routers tell tokens apart.
std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f32) {
  auto model = test::build(json, dtype);
  for (const Param& p : model->params().all())
    if (p.decayed()) test::cpu().kernels().multiply({p.var.value()}, p.var.value(), 10);
  return model;
}

using test::tokens;

Tensor hidden(const LanguageModel& model, const Tensor& in, int depth, bool causal) {
  return model.hidden(in, depth, {.causal_routing = causal}).value().clone();
}

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("mor's steps take as many tokens as the reference's") {
    const Json rows = read_json(test::fixture("modules.json").string())["mor_capacity"];
    REQUIRE(rows.size() == 12);
    for (const Json& row : rows) {
      const int R = row["R"];
      std::vector<std::int64_t> k;
      for (int r = 1; r <= R; ++r) k.push_back(mor_capacity(row["length"], r, R));
      CHECK(k == row["k"].get<std::vector<std::int64_t>>());
    }
  }

  TEST_CASE("mor whose steps take all tokens through a constant gate is a loop whose core is scaled and added") {
    // One token is taken by every step; with R = 1 the one step takes all.
    for (const auto& [time, R] : {std::pair(1, 3), std::pair(12, 1)}) {
      CAPTURE(R);
      const auto mor = build(toy({{"n_recurrences", R}, {"router_scale", 0.7}}), DType::f64);
      for (const Param& p : mor->params().all())
        if (p.name.starts_with("router.")) test::cpu().zero(p.var.value().raw(), p.var.value().bytes());
      const auto loop =
          build(toy({{"architecture", "grt"}, {"n_recurrences", R}, {"use_injection", false}, {"use_gate", false}}),
                DType::f64);
      const auto& plain = dynamic_cast<const RecurrentModel&>(*loop);
      const Tensor in = tokens(2, time);
      const auto u = plain.unroll(in, {});
      Var h = u.h;
      for (int r = 0; r < R; ++r) h = h + scale(u.step(h, r), 0.7f * 0.5f);  // sigmoid(0) = 1/2
      const Tensor expected = plain.finish(h, R, {}).value();
      CHECK(test::largest_difference(mor->hidden(in, R, {}).value(), expected) < 1e-7);  // the scales are floats
    }
  }

  TEST_CASE("mor: the loss is the cross-entropy and a share of the routers' losses, at every depth") {
    for (const char* type : {"linear", "mlp"})
      for (const int depth : {1, 2, 3}) {
        const auto at_weight = [&](double weight) {
          const auto model = build(toy({{"router_aux_weight", weight}, {"router_type", type}}), DType::f64);
          return test::values(model->loss(tokens(2, 12), tokens(2, 12, 2), depth, {}).value())[0];
        };
        const double none = at_weight(0), one = at_weight(1), two = at_weight(2);
        CHECK(two - one == doctest::Approx(one - none).epsilon(1e-12));
        CHECK(one - none > 0.1 * depth);  // each is a mean of losses around ln 2
        const auto model = build(toy({{"router_type", type}}), DType::f64);
        const Tensor losses = model->losses(hidden(*model, tokens(2, 12), depth, false), tokens(2, 12, 2));
        double mean = 0;
        for (const double loss : test::values(losses)) mean += loss / 24;
        CHECK(none == doctest::Approx(mean).epsilon(1e-12));
      }
  }

  TEST_CASE("mor: a sequence goes its way whatever else is in the batch, under both kinds of routing") {
    const auto model = build(toy());
    const Tensor in = tokens(3, 12);
    for (const bool causal : {false, true})
      for (const int depth : {1, 2, 3}) {
        const Tensor all = hidden(*model, in, depth, causal);
        for (std::int64_t b = 0; b < 3; ++b)
          CHECK(test::same_bits(hidden(*model, in.rows(b, 1), depth, causal), all.range(b * 144, {1, 12, 12})));
      }
  }

  TEST_CASE("mor: all tokens take the first step under both kinds of routing, and their ways part after it") {
    const auto model = build(toy());
    const Tensor in = tokens(2, 12);
    CHECK(test::same_bits(hidden(*model, in, 1, false), hidden(*model, in, 1, true)));
    CHECK_FALSE(test::same_bits(hidden(*model, in, 3, false), hidden(*model, in, 3, true)));
  }

  TEST_CASE(
      "mor: a step changes the tokens it takes alone: k_r of a sequence under top-k, never one that was left out") {
    const auto model = build(toy({{"n_coda", 0}}));  // a coda would let all tokens see a change
    const std::vector<int> depths{1, 2, 3};
    for (const bool causal : {false, true}) {
      std::vector<Tensor> states;
      model->exits(tokens(2, 12), depths, {.causal_routing = causal},
                   [&](int, const Var& z) { states.push_back(z.value().clone()); });
      const auto changed = [&](int step, std::int64_t token) {
        const std::int64_t at = token * 12;
        return !test::same_bits(states[step].range(at, {12}), states[step - 1].range(at, {12}));
      };
      int taken = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (int step = 1; step < 3; ++step) {
          std::int64_t count = 0;
          for (std::int64_t token = b * 12; token < b * 12 + 12; ++token) {
            count += changed(step, token);
            if (step == 2 && changed(2, token)) CHECK(changed(1, token));
          }
          if (!causal) CHECK(count == mor_capacity(12, step + 1, 3));
          taken += static_cast<int>(count);
        }
      CHECK(taken > 0);
      CHECK(taken < 4 * 12);
    }
  }

  TEST_CASE("mor: once no token goes on the steps that are left do nothing") {
    auto model = build(toy());
    const Tensor weight = model->params().find("router.1.weight")->var.value();
    test::cpu().zero(weight.raw(), weight.bytes());  // 0 is not above 0
    const Tensor in = tokens(2, 12);
    CHECK(test::same_bits(hidden(*model, in, 1, true), hidden(*model, in, 2, true)));
    CHECK(test::same_bits(hidden(*model, in, 1, true), hidden(*model, in, 3, true)));
    CHECK_FALSE(test::same_bits(hidden(*model, in, 1, false), hidden(*model, in, 2, false)));  // of equals the first
  }

  TEST_CASE("mor: a router's weight is trained by the loss, through the gate and through its own loss") {
    for (const double weight : {0.0, 1.0}) {
      auto model = build(toy({{"router_aux_weight", weight}}), DType::f64);
      model->params().clear_gradients();
      Tape tape;
      Var loss;
      {
        const Record on(&tape);
        loss = model->loss(tokens(2, 12), tokens(2, 12, 2), 2, {});
      }
      const double one = 1;
      tape.backward(loss, Tensor::from<double>({1}, std::span(&one, 1), test::cpu()));
      model->params().complete_gradients();
      const auto largest = [&](const char* name) {
        double most = 0;
        for (const double x : test::values(model->params().find(name)->var.grad())) most = std::max(most, std::abs(x));
        return most;
      };
      CHECK(largest("router.0.weight") > 0);
      CHECK(largest("router.1.weight") > 0);
      CHECK(largest("router.2.weight") == 0);  // depth 2 does not reach it
    }
  }

  TEST_CASE("mor refuses depths it has no router for, a cache without the causal rule, and to record that rule") {
    const auto model = build(toy());
    const Tensor in = tokens(1, 12);
    CHECK(test::contains(test::error_of([&] { hidden(*model, in, 4, true); }), "1..3"));
    CHECK(test::contains(test::error_of([&] { hidden(*model, in, 0, false); }), "1..3"));
    KvCache cache = model->make_cache(1, 12, 3);
    CHECK(test::contains(test::error_of([&] { model->hidden(in, 3, {.cache = &cache}); }), "must be causal"));
    Tape tape;
    const Record on(&tape);
    CHECK(test::contains(test::error_of([&] { hidden(*model, in, 3, true); }), "cannot be recorded"));
    CHECK(test::contains(test::error_of([&] { model->loss(in, in, 3, {.causal_routing = true}); }), "top-k"));
  }

  TEST_CASE("mor executes the share of the core that its tokens take") {
    const auto model = make_model(find_model("mor-small"), "test");
    const Flops full = model->flops(1024, 10);
    const double d = 768, block = 24 * d * d;
    double expected = 2 * (block + 2 * 1025 * d), seen = 1;
    for (int r = 1; r <= 10; ++r) {
      const double k = static_cast<double>((10 - r + 1) * 1024 / 10), share = k / 1024;
      expected += share * (block + 2 * (k + 1) * d) + seen * 2 * d;
      seen = share;
    }
    CHECK(full.executed_body == doctest::Approx(expected).epsilon(1e-12));
    CHECK(full.executed_body < 0.65 * full.paper_body);
  }
}

}  // namespace grt
