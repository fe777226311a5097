// Whole models on emulated CUDA against the CPU: the reference models' logits, losses and gradients, generation through
// the cache, and training.
#include <algorithm>
#include <cmath>

#include "ops/hold.h"
#include "tests/cuda/modes.h"
#include "tests/train/oracle_models.h"
#include "train/host.h"
#include "train/memory_plan.h"
#include "train/optimizer.h"

namespace grt {
namespace {

using Values = std::vector<double>;

const Json kToy = {{"architecture", "grt"}, {"vocab_size", 13}, {"padded_vocab_size", 16}, {"context_length", 6},
                   {"d_model", 12},         {"n_heads", 3},     {"n_recurrences", 3}};

Tensor tokens_of(const LanguageModel& model, std::int64_t batch, std::int64_t length, std::uint32_t site) {
  std::vector<std::int32_t> ids(batch * length);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(random_below({5, 0, site}, i, model.config().vocab_size));
  return Tensor::from<std::int32_t>({batch, length}, ids, model.device());
}

// The loss of one pass; the gradients of all parameters are added to what is there.
double differentiate(LanguageModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass) {
  Tape tape;
  Var loss;
  {
    Record on(&tape);
    loss = model.loss(tokens, targets, model.depths().full, pass);
  }
  const float one = 1;
  const double value = host_values(loss.value())[0];
  tape.backward(loss, Tensor::from<float>({1}, std::span(&one, 1), model.device()));
  model.params().complete_gradients();
  return value;
}

// max |got - expected| relative to max |expected|; infinite where a NaN came.
double error(const Values& got, const Values& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, largest = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(got[i] - expected[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

struct Evaluated {
  Values logits, loss, gradients;
};

Evaluated evaluate(const std::string& name, Device& device) {
  const auto model = load_model(test::oracle(name), device);
  const Tensor tokens = tokens_of(*model, 2, 9, 1), targets = tokens_of(*model, 2, 9, 2);
  const Pass pass{.training = true, .key = {3, 0, 0}};
  Evaluated e;
  e.logits = host_values(model->logits(model->hidden(tokens, model->depths().full, {}).value()));
  model->params().allocate_gradients();
  model->params().clear_gradients();
  e.loss = {differentiate(*model, tokens, targets, pass)};
  e.gradients = host_values(model->params().gradients());
  return e;
}

// The logits after each token of a sequence that goes through the cache in pieces.
Values decode(const LanguageModel& model) {
  const Tensor tokens = tokens_of(model, 1, 9, 3);
  KvCache cache = model.make_cache(1, 9, model.depths().full);
  const Pass pass{.cache = &cache, .causal_routing = true};
  Values all;
  std::int64_t past = 0;
  for (const std::int64_t n : {4, 1, 1, 3}) {
    const Tensor z = model.hidden(tokens.range(past, {1, n}), model.depths().full, pass).value();
    past += n;
    for (const double x : host_values(model.logits(z))) all.push_back(x);
  }
  return all;
}

std::unique_ptr<LanguageModel> packed_toy(DType type, Device& device) {
  Json json = kToy;
  json.update(
      {{"vocab_size", 70}, {"padded_vocab_size", 80}, {"context_length", 24}, {"d_model", 64}});  // whole panels
  json["n_heads"] = 2;
  auto model = make_model(json, "test");
  model->pack_weights(type);
  model->params().allocate(device, DType::f32);
  model->params().initialize(7);
  return model;
}

// A toy's losses and last weights over some steps.
std::pair<Values, Values> train(Device& device) {
  const auto model = make_model(kToy, "test");
  model->params().allocate(device, DType::f32);
  model->params().allocate_gradients();
  model->params().initialize(1);
  Optimizer optimizer(model->params(), {0.9, 0.95, 1e-8, 0.1, 1});
  const Tensor tokens = tokens_of(*model, 2, 6, 1), targets = tokens_of(*model, 2, 6, 2);
  Values losses;
  for (std::int64_t step = 0; step < 8; ++step) {
    model->params().clear_gradients();
    {
      const Hold hold(model->params().values());
      losses.push_back(
          differentiate(*model, tokens, targets, {.training = true, .key = {3, static_cast<std::uint32_t>(step), 0}}));
    }
    optimizer.update(step, 1e-2);
  }
  return {losses, host_values(model->params().values())};
}

TEST_SUITE("cuda") {
  // Deviations of single kernels, 1e-6, through some ten layers.
  TEST_CASE("the logits, losses and gradients of every reference model are the CPU's to 5e-5") {
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode);
      for (const std::string& name : test::kOracleModels) {
        CAPTURE(name);
        const Evaluated got = evaluate(name, emulated.device()), expected = evaluate(name, test::cpu());
        CHECK(error(got.logits, expected.logits) <= 5e-5);
        CHECK(error(got.loss, expected.loss) <= 1e-5);
        CHECK(error(got.gradients, expected.gradients) <= 5e-5);
      }
    }
  }

  TEST_CASE("a sequence in pieces through the cache has the CPU's logits") {
    test::Emulated emulated({emu::Order::random, emu::Streams::lazy});
    for (const std::string& name : test::kOracleModels) {
      CAPTURE(name);
      const Values got = decode(*load_model(test::oracle(name), emulated.device()));
      CHECK(error(got, decode(*load_model(test::oracle(name), test::cpu()))) <= 5e-5);
    }
  }

  TEST_CASE("a model with packed weights has the CPU's logits, in one pass and in pieces") {
    test::Emulated emulated({emu::Order::random, emu::Streams::lazy});
    for (const DType type : {DType::packed_f32, DType::packed_bf16, DType::packed_int8}) {
      CAPTURE(name_of(type));
      const auto got = packed_toy(type, emulated.device()), expected = packed_toy(type, test::cpu());
      CHECK(error(decode(*got), decode(*expected)) <= 5e-5);
      const auto whole = [](const LanguageModel& model) {
        return host_values(model.logits(model.hidden(tokens_of(model, 1, 20, 4), 3, {}).value()));
      };
      CHECK(error(whole(*got), whole(*expected)) <= 5e-5);
    }
  }

  TEST_CASE("training takes the CPU's way") {
    test::Emulated emulated({emu::Order::reverse, emu::Streams::lazy});
    const auto [losses, weights] = train(emulated.device());
    const auto [cpu_losses, cpu_weights] = train(test::cpu());
    CHECK(error(losses, cpu_losses) <= 1e-4);
    CHECK(error(weights, cpu_weights) <= 1e-3);
    CHECK(losses.back() < 0.9 * losses.front());
  }

  // A sum's last bit decides now and then how the next product's factor is rounded: 2^-9 of that factor.
  TEST_CASE("training with bf16 products takes the way that it takes on the CPU") {
    test::Emulated emulated({emu::Order::reverse, emu::Streams::lazy, false, true}, DType::bf16);
    const std::unique_ptr<Device> cpu = open_cpu(DType::bf16);
    const auto [losses, weights] = train(emulated.device());
    const auto [cpu_losses, cpu_weights] = train(*cpu);
    CHECK(error(losses, cpu_losses) <= 5e-3);
    CHECK(error(weights, cpu_weights) <= 2e-2);
    CHECK(losses.back() < 0.9 * losses.front());
    CHECK(error(losses, train(test::cpu()).first) > 1e-5);  // they are of bf16
  }

  TEST_CASE("the memory plan counts the rounded weights that a hold keeps, to the byte") {
    test::Emulated emulated({.keep_blocks = true}, DType::bf16);
    Device& device = emulated.device();
    const MemoryPlan plan = plan_memory({.model = kToy,
                                         .dtype = DType::f32,
                                         .batch_size = 2,
                                         .depths = {3},
                                         .recompute = false,
                                         .keeps = device.kernels().keeps()});
    const auto model = make_model(kToy, "test");
    model->params().allocate(device, DType::f32);
    model->params().allocate_gradients();
    model->params().initialize(1);
    const Tensor tokens = tokens_of(*model, 2, 6, 1);
    const std::size_t before = device.in_use();
    for (int pass = 0; pass < 2; ++pass) {
      const Hold hold(model->params().values());
      differentiate(*model, tokens, tokens, {.training = true});
      CHECK(plan.held > 0);
      CHECK(static_cast<std::int64_t>(device.in_use() - before) == plan.held);
    }
    CHECK(device.in_use() == before);
  }
}

}  // namespace
}  // namespace grt
