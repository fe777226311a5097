// Whole models on emulated CUDA against the CPU: the reference models' logits, losses and gradients, generation through
// the cache, and training.
#include <algorithm>
#include <cmath>

#include "tests/cuda/modes.h"
#include "tests/train/oracle_models.h"
#include "train/host.h"
#include "train/optimizer.h"

namespace grt {
namespace {

using Values = std::vector<double>;

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
Values decode(const std::string& name, Device& device) {
  const auto model = load_model(test::oracle(name), device);
  const Tensor tokens = tokens_of(*model, 1, 9, 3);
  KvCache cache = model->make_cache(1, 9, model->depths().full);
  const Pass pass{.cache = &cache, .causal_routing = true};
  Values all;
  std::int64_t past = 0;
  for (const std::int64_t n : {4, 1, 1, 3}) {
    const Tensor z = model->hidden(tokens.range(past, {1, n}), model->depths().full, pass).value();
    past += n;
    for (const double x : host_values(model->logits(z))) all.push_back(x);
  }
  return all;
}

// A toy's losses and last weights over some steps.
std::pair<Values, Values> train(Device& device) {
  const auto model = make_model({{"architecture", "grt"},
                                 {"vocab_size", 13},
                                 {"padded_vocab_size", 16},
                                 {"context_length", 6},
                                 {"d_model", 12},
                                 {"n_heads", 3},
                                 {"n_recurrences", 3}},
                                "test");
  model->params().allocate(device, DType::f32);
  model->params().allocate_gradients();
  model->params().initialize(1);
  Optimizer optimizer(model->params(), {0.9, 0.95, 1e-8, 0.1, 1});
  const Tensor tokens = tokens_of(*model, 2, 6, 1), targets = tokens_of(*model, 2, 6, 2);
  Values losses;
  for (std::int64_t step = 0; step < 8; ++step) {
    model->params().clear_gradients();
    losses.push_back(
        differentiate(*model, tokens, targets, {.training = true, .key = {3, static_cast<std::uint32_t>(step), 0}}));
    optimizer.update(step, 1e-2, optimizer.gradient_norm());
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
      CHECK(error(decode(name, emulated.device()), decode(name, test::cpu())) <= 5e-5);
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
}

}  // namespace
}  // namespace grt
