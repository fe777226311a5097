// What the models say they execute, against what their passes multiply on a device that counts, and that against
// formulas written down by hand.
#include <doctest/doctest.h>

#include "models/model.h"
#include "models/mor.h"
#include "ops/plan.h"
#include "tests/support.h"

namespace grt {
namespace {

constexpr int kTime = 7, kRecurrences = 3;
constexpr double d = 12, kPadded = 16;

Json toy(const std::string& architecture, const Json& keys = {}) {
  Json json{{"architecture", architecture}, {"vocab_size", 13}, {"padded_vocab_size", 16},
            {"context_length", kTime},      {"d_model", 12},    {"n_heads", 3}};
  if (architecture == "dense")
    json["n_layers"] = 2;
  else
    json.update(Json{{"n_prelude", 1}, {"n_core", 2}, {"n_recurrences", kRecurrences}, {"n_coda", 1}});
  if (!keys.is_null()) json.update(keys);
  return json;
}

// Per token, of a forward pass without a tape.
double multiplied(const Json& json, int depth) {
  const std::unique_ptr<PlanDevice> device = open_plan();
  const auto model = make_model(json, "test");
  model->params().allocate(*device, DType::f32);
  const Tensor tokens = Tensor::empty({2, kTime}, DType::i32, *device);
  model->logits(model->hidden(tokens, depth, {}).value());
  return device->product_flops() / (2 * kTime);
}

double training(const Json& json, int depth) { return make_model(json, "test")->training_flops(kTime, depth); }

// A block's Linears, its two attention products over n positions, and the head.
constexpr double kLinears = 24 * d * d, kHead = 2 * d * kPadded;
double pairs(double n) { return 2 * (n + 1) * d; }
// Forward and backward: each Linear three times; attention's scores are computed once more.
double trained_block(double n = kTime) { return 3 * kLinears + 3.5 * pairs(n); }

TEST_SUITE("models") {
  TEST_CASE("a forward pass multiplies what flops() says, for every model and depth") {
    for (const Json& json :
         {toy("dense"), toy("grt"), toy("grt", {{"gate_concat_norm", true}}), toy("grt", {{"use_gate", false}}),
          toy("grt", {{"use_injection", false}}), toy("poisson"), toy("mor"), toy("mor", {{"router_type", "mlp"}}),
          toy("rrt", {{"lora_rank", 2}}), toy("ouro")}) {
      CAPTURE(json.dump());
      const auto model = make_model(json, "test");
      for (int depth = model->depths().lowest; depth <= model->depths().full; ++depth) {
        const Flops flops = model->flops(kTime, depth);
        CHECK(multiplied(json, depth) == doctest::Approx(flops.executed_body + flops.executed_head).epsilon(1e-12));
      }
    }
  }

  TEST_CASE("training dense multiplies every weight three times, the head included") {
    CHECK(training(toy("dense"), 2) == doctest::Approx(2 * trained_block() + 3 * kHead).epsilon(1e-12));
  }

  TEST_CASE("training grt multiplies the anchor's halves of inject and gate once in each direction") {
    const double each = 3 * 6 * d * d, once = 3 * 4 * d * d;
    for (const int r : {1, 3})
      CHECK(training(toy("grt"), r) ==
            doctest::Approx((2 + 2 * r) * trained_block() + r * each + once + 3 * kHead).epsilon(1e-12));
  }

  TEST_CASE("training poisson goes back through the last backprop_steps steps alone") {
    const double forward = 2 * (kLinears + pairs(kTime)) + 2 * d * d;  // a step's core and its half of the adapter
    for (const int kept : {1, 2, 8})
      for (const int r : {1, 3, 12}) {
        const int back = std::min(r, kept);
        // The state that the first of these steps begins with is a constant: it gets no gradient.
        const double steps = (r - back) * forward + back * (2 * trained_block() + 3 * 2 * d * d) - 2 * d * d;
        const double others = 2 * trained_block() + 3 * 2 * d * d;  // prelude and coda, the anchor's half
        CHECK(training(toy("poisson", {{"backprop_steps", kept}}), r) ==
              doctest::Approx(steps + others + 3 * kHead).epsilon(1e-12));
      }
  }

  TEST_CASE("training mor multiplies the rows that its steps take, and each router's, which the step before took") {
    double steps = 0, seen = kTime;
    for (int r = 1; r <= kRecurrences; ++r) {
      const auto k = static_cast<double>(mor_capacity(kTime, r, kRecurrences));
      steps += k * 2 * trained_block(k) + seen * 3 * 2 * d;
      seen = k;
    }
    CHECK(seen == 2);  // of 7: 7, 4, 2
    CHECK(training(toy("mor"), kRecurrences) ==
          doctest::Approx(2 * trained_block() + steps / kTime + 3 * kHead).epsilon(1e-12));
  }

  TEST_CASE("training rrt multiplies the low-rank parts three times as well") {
    const double parts = 2 * 16 * d * 2;
    CHECK(training(toy("rrt", {{"lora_rank", 2}}), 2) ==
          doctest::Approx(6 * trained_block() + 4 * 3 * parts + 3 * kHead).epsilon(1e-12));
  }

  TEST_CASE("training ouro runs coda, gate and head at every exit, and the head's product once more to go back") {
    for (const int exits : {1, 3})
      CHECK(training(toy("ouro"), exits) ==
            doctest::Approx((1 + 3 * exits) * trained_block() + exits * (3 * 2 * d + 4 * kHead)).epsilon(1e-12));
  }

  TEST_CASE("the device that counts also counts attention with a cache, and no product that is not wanted") {
    const std::unique_ptr<PlanDevice> device = open_plan();
    const auto model = make_model(toy("dense"), "test");
    model->params().allocate(*device, DType::f32);
    KvCache cache = model->make_cache(1, kTime, 2);
    model->hidden(Tensor::empty({1, 4}, DType::i32, *device), 2, {.cache = &cache});
    const double first = device->product_flops();
    model->hidden(Tensor::empty({1, 3}, DType::i32, *device), 2, {.cache = &cache});
    CHECK(device->product_flops() - first == 2 * (3 * kLinears + (5 + 6 + 7) * 4 * d));

    const double before = device->product_flops();
    const Var x = Tensor::empty({2, 3}, DType::f32, *device);
    const Var w = Var::leaf(Tensor::empty({5, 3}, DType::f32, *device));
    Tape tape;
    Var y;
    {
      Record on(&tape);
      y = linear(x, w);
    }
    tape.backward(y, Tensor::empty({2, 5}, DType::f32, *device));
    CHECK(device->product_flops() - before == 2 * (2 * 2 * 3 * 5));  // y and dw, not dx
  }
}

}  // namespace
}  // namespace grt
