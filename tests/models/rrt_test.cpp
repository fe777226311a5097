// `rrt`: what a recurrence adds to the shared weights.
#include <fmt/format.h>

#include "models/model.h"
#include "tests/models/toys.h"

namespace grt {
namespace {

Json toy(const Json& keys = Json::object()) {
  Json json{{"architecture", "rrt"}, {"vocab_size", 13},  {"padded_vocab_size", 16},
            {"context_length", 6},   {"d_model", 12},     {"n_heads", 3},
            {"n_core", 2},           {"n_recurrences", 3}};
  json.update(keys);
  return json;
}

std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f64) { return test::build(json, dtype); }

using test::tokens;

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("an rrt whose B are zero, as they are at first, is plain recurrence, bit for bit") {
    auto plain = build(toy({{"architecture", "grt"}, {"use_injection", false}, {"use_gate", false}}));
    auto rrt = build(toy());
    const Tensor in = tokens(2, 6, 1);
    for (int depth = 1; depth <= 3; ++depth)
      CHECK(test::same_bits(rrt->hidden(in, depth, {}).value(), plain->hidden(in, depth, {}).value()));
  }

  TEST_CASE("an rrt's alpha is 2 rho unless it is given") {
    for (const int rank : {1, 4, 8})
      CHECK(make_model(toy({{"lora_rank", rank}}), "test")->config_json()["lora_alpha"] == 2.0 * rank);
    CHECK(make_model(toy({{"lora_rank", 4}, {"lora_alpha", 5}}), "test")->config_json()["lora_alpha"] == 5.0);
  }

  TEST_CASE("an rrt's low-rank part is that of its own recurrence, times alpha / rho") {
    const Tensor in = tokens(2, 6, 1);
    auto model = build(toy()), same = build(toy({{"lora_alpha", 32}}));
    const auto exits = [&](const LanguageModel& m) {
      std::vector<Tensor> all;
      m.exits(in, std::vector<int>{1, 2, 3}, {}, [&](int, const Var& z) { all.push_back(z.value().clone()); });
      return all;
    };
    const auto before = exits(*model);
    for (const char* layer : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
      CAPTURE(layer);
      const std::string name = fmt::format("lora.1.core.1.{}.B", layer);
      double& b = model->params().find(name)->var.value().data<double>()[3];
      double& half = same->params().find(name)->var.value().data<double>()[3];
      b = 100;
      half = 50;
      const auto after = exits(*model), scaled = exits(*same);
      CHECK(test::same_bits(before[0], after[0]));
      for (const int exit : {1, 2}) {
        CHECK(test::largest_difference(before[exit], after[exit]) > 1e-6);
        CHECK(test::largest_difference(scaled[exit], after[exit]) < 1e-12);
      }
      b = half = 0;
    }
  }

  TEST_CASE("an rrt's A are drawn anew for each recurrence, its B are zero") {
    const auto model = build(toy());
    const auto of = [&](const char* name) { return test::values(model->params().find(name)->var.value()); };
    CHECK(of("lora.0.core.0.mlp.c_fc.A") != of("lora.1.core.0.mlp.c_fc.A"));
    CHECK(of("lora.2.core.1.attn.c_attn.B") == std::vector<double>(36 * 8, 0));
    CHECK(model->params().find("lora.2.core.1.mlp.c_proj.A")->shape == Shape{8, 48});
    CHECK(model->params().find("lora.3.core.0.mlp.c_fc.A") == nullptr);
  }

  TEST_CASE("an rrt executes 32 d rho operations more for each application of a core block") {
    const auto executed = [](int rank) { return make_model(toy({{"lora_rank", rank}}), "test")->flops(6, 2); };
    CHECK(executed(5).executed_body - executed(3).executed_body == 2 * 2 * 32 * 12 * 2);
    CHECK(executed(5).paper_body == executed(3).paper_body);
  }
}

}  // namespace grt
