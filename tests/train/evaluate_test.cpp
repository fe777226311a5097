// evaluate() against the reference models, and what its results must not depend on.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/threads.h"
#include "tests/support.h"
#include "tests/train/oracle_models.h"
#include "train/generate.h"
#include "train/host.h"

namespace grt::test {
namespace {

EvalOptions at_depths(std::vector<int> depths) {
  EvalOptions options;
  options.depths = std::move(depths);
  return options;
}

std::vector<int> all_depths(const LanguageModel& model) {
  std::vector<int> depths;
  for (int d = model.depths().lowest; d <= model.depths().full; ++d) depths.push_back(d);
  return depths;
}

// Are the results equal bit for bit?
constexpr auto same_entry = [](const auto& a, const auto& b) {
  return a.first == b.first && a.second.mean == b.second.mean && a.second.standard_error == b.second.standard_error;
};
bool same(const EvalResult& a, const EvalResult& b) {
  return a.tokens == b.tokens && a.windows == b.windows &&
         std::equal(a.by_depth.begin(), a.by_depth.end(), b.by_depth.begin(), b.by_depth.end(), same_entry) &&
         std::equal(a.further.begin(), a.further.end(), b.further.begin(), b.further.end(), same_entry);
}

Tensor tokens_of(const std::vector<std::int32_t>& ids) {
  return Tensor::from<std::int32_t>({1, static_cast<std::int64_t>(ids.size())}, ids, cpu());
}

// Over the rows of the reference's logits of the first window.
double largest_logit_error(const LanguageModel& model, const TokenData& data, const Json& expected,
                           bool causal_routing) {
  std::vector<std::int32_t> ids(model.config().context_length);
  data.read(0, ids);
  const Tensor z = model.hidden(tokens_of(ids), expected["depth"], {.causal_routing = causal_routing}).value();
  const std::vector<double> logits = host_values(model.logits(z));
  double worst = 0;
  for (std::size_t i = 0; i < expected["positions"].size(); ++i) {
    const std::int64_t at = expected["positions"][i].get<std::int64_t>() * model.config().padded_vocab_size;
    const std::vector<double> row = expected["rows"][i];
    REQUIRE(static_cast<std::int64_t>(row.size()) == model.config().vocab_size);
    for (std::size_t id = 0; id < row.size(); ++id) worst = std::max(worst, std::abs(logits[at + id] - row[id]));
  }
  return worst;
}

// The loss of each id but the first, each from its own pass over the ids that its window holds before it.
std::vector<double> losses_one_by_one(const LanguageModel& model, const TokenData& data, std::int64_t stride) {
  std::vector<double> losses;
  for (std::int64_t target = 1; target < data.size(); ++target) {
    std::int64_t begin = 0;
    while (begin + model.config().context_length < target) begin += stride;
    std::vector<std::int32_t> ids(target - begin), next(1);
    data.read(begin, ids);
    data.read(target, next);
    const Tensor z = model.hidden(tokens_of(ids), model.depths().full, {}).value();
    losses.push_back(host_values(model.losses(z.rows(z.dim(1) - 1, 1), tokens_of(next).view({1}))).at(0));
  }
  return losses;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("evaluation gives the reference losses at every depth") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      std::vector<int> depths;
      for (const auto& [depth, loss] : expected["loss_by_depth"].items()) depths.push_back(std::stoi(depth));
      const EvalResult result = evaluate(*model, data, at_depths(depths));
      CHECK(result.tokens == expected["tokens_predicted"]);
      CHECK(result.by_depth.size() == depths.size());
      for (const auto& [depth, loss] : result.by_depth) {
        CAPTURE(depth);
        const double wanted = expected["loss_by_depth"][std::to_string(depth)];
        CHECK(std::abs(loss.mean - wanted) < kLossTolerance);
      }
    }
  }

  TEST_CASE("a model's further losses are the reference's, and are asked for") {
    const Json expected = oracle_values("ouro");
    const auto model = oracle_model("ouro");
    const TokenData data = oracle_tokens("ouro", model->config().vocab_size);
    EvalOptions options = at_depths({1});
    CHECK(evaluate(*model, data, options).further.empty());
    options.further = true;
    const EvalResult result = evaluate(*model, data, options);
    REQUIRE(result.further.size() == 1);
    CHECK(std::abs(result.further.at("loss_expected").mean - expected["loss_expected"].get<double>()) < kLossTolerance);
    CHECK(result.further.at("loss_expected").standard_error > 0);
    CHECK(oracle_model("rrt")->further_losses(tokens_of({1}), tokens_of({2}), {}).empty());
  }

  TEST_CASE("the first window's logits are the reference's") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      CHECK(largest_logit_error(*model, data, oracle_values(name)["logits"], false) < kLogitTolerance);
    }
  }

  TEST_CASE("causal routing gives mor's reference losses and logits") {
    for (const std::string name : {"mor", "mor_mlp_router"}) {
      CAPTURE(name);
      const Json expected = oracle_values(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      EvalOptions options = at_depths(all_depths(*model));
      options.causal_routing = true;
      for (const auto& [depth, loss] : evaluate(*model, data, options).by_depth)
        CHECK(std::abs(loss.mean - expected["loss_by_depth_causal"][std::to_string(depth)].get<double>()) <
              kLossTolerance);
      CHECK(largest_logit_error(*model, data, expected["logits_causal"], true) < kLogitTolerance);
    }
  }

  TEST_CASE("decoding token by token has the exits of one pass, at any depth and batch") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      const std::vector<Window> windows = evaluation_windows(data.size(), model->config().context_length);
      const Tensor tokens = evaluation_batch(data, std::span(windows).first(2), cpu()).tokens;
      const std::vector<int> depths = {1, 2};
      const Pass pass{.causal_routing = true};
      std::vector<Tensor> once;
      model->exits(tokens, depths, pass, [&](int, const Var& z) { once.push_back(z.value()); });
      decode_exits(*model, tokens, depths, pass, KvStrategy::full, [&](int depth, const Var& z) {
        CHECK(largest_difference(z.value(), once[depth == 1 ? 0 : 1]) < 1e-11);
      });
    }
  }

  TEST_CASE("a loss under a reduced cache is the mean score of decoding each window from its first token on") {
    const auto model = oracle_model("grt");
    const TokenData data = oracle_tokens("grt", model->config().vocab_size);
    for (const KvStrategy kv : {KvStrategy::mean, KvStrategy::last, KvStrategy::first}) {
      EvalOptions options = at_depths({3});
      options.most_batches = 1;
      options.kv = kv;
      options.batch_size = 2;
      const EvalResult result = evaluate(*model, data, options);
      double sum = 0;
      const std::vector<Window> windows = evaluation_windows(data.size(), 30);
      for (const Window& window : std::span(windows).first(2)) {
        const Batch batch = evaluation_batch(data, std::span(&window, 1), cpu());
        const auto* tokens = batch.tokens.data<std::int32_t>();
        std::vector<int> ids(tokens + 1, tokens + 30);
        ids.push_back(batch.targets.data<std::int32_t>()[29]);
        for (const double logprob : score(*model, std::vector<int>{tokens[0]}, ids, {.kv = kv})) sum -= logprob;
      }
      CHECK(result.by_depth.at(3).mean == doctest::Approx(sum / 60).epsilon(1e-5));
      options.kv = KvStrategy::full;
      CHECK(std::abs(evaluate(*model, data, options).by_depth.at(3).mean - sum / 60) > 1e-4);
    }
    EvalOptions options = at_depths({1});
    options.kv = KvStrategy::mean;
    CHECK(contains(error_of([&] { evaluate(*oracle_model("rrt"), oracle_tokens("rrt", 97), options); }),
                   "--kv: this rrt model"));
  }

  TEST_CASE("the depth histogram of causal routing counts the steps of the tokens that predict, whatever the batch") {
    for (const std::string name : {"mor", "mor_mlp_router"}) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      EvalOptions options = at_depths({3});
      options.causal_routing = true;
      options.batch_size = 1;
      for (const std::int64_t stride : {0, 5}) {
        options.stride = stride;
        options.batch_size = 1;
        const EvalResult one = evaluate(*model, data, options);
        double sum = 0, mean = 0;
        for (const auto& [steps, share] : one.depth_histogram) sum += share, mean += steps * share;
        CHECK(sum == doctest::Approx(1).epsilon(1e-12));
        CHECK(one.depth_histogram.begin()->first >= 1);
        CHECK(one.depth_histogram.rbegin()->first <= 3);
        CHECK(mean > 1);  // the routers of these models tell tokens apart
        CHECK(mean < 3);
        CHECK(*one.router_entropy > 0);
        CHECK(*one.router_entropy < std::log(2.0));
        options.batch_size = 7;
        const EvalResult seven = evaluate(*model, data, options);
        CHECK(seven.depth_histogram == one.depth_histogram);
        CHECK(*seven.router_entropy == *one.router_entropy);
      }
      options.causal_routing = false;
      CHECK(evaluate(*model, data, options).depth_histogram.empty());
    }
  }

  TEST_CASE("a random initial state is keyed on seed and position: no batch and no place in one makes a difference") {
    Json config = oracle_model("poisson")->config_json();
    config["initial_state"] = "random";
    const auto model = make_model(config, "test");
    model->params().allocate(cpu(), DType::f32);
    model->params().initialize(3);
    const TokenData data = oracle_tokens("poisson", model->config().vocab_size);
    EvalOptions options = at_depths({1, 4});
    options.batch_size = 1;
    const EvalResult one = evaluate(*model, data, options);
    CHECK(same(evaluate(*model, data, options), one));
    options.batch_size = 8;
    CHECK(same(evaluate(*model, data, options), one));
    options.seed = 2;
    CHECK_FALSE(same(evaluate(*model, data, options), one));
  }

  TEST_CASE("the two parts of mor's training loss are the reference's") {
    for (const std::string name : {"mor", "mor_mlp_router"}) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["gradients"];
      const auto loss_at_weight = [&](double weight) {
        Json config = read_json((oracle(name) / "config.json").string());
        config["router_aux_weight"] = weight;
        const auto model = make_model(config, name);
        model->params().allocate(cpu(), DType::f64);
        load_parameters(model->params(), oracle(name) / "model.safetensors");
        const TokenData data = oracle_tokens(name, model->config().vocab_size);
        const TrainingOrder order{
            .kind = DataOrder::sequential, .context_length = model->config().context_length, .batch_size = 2};
        const Batch batch = training_batch(data, order, 0, 0, cpu());
        return host_values(model->loss(batch.tokens, batch.targets, model->depths().full, {}).value())[0];
      };
      const double cross_entropy = loss_at_weight(0);
      CHECK(std::abs(cross_entropy - expected["ce"].get<double>()) < 1e-8);
      CHECK(std::abs(loss_at_weight(1) - cross_entropy - expected["aux"].get<double>()) < 1e-8);
    }
  }

  TEST_CASE("a forced gate gives the reference losses") {
    for (const std::string name : {"grt", "grt_concat_norm", "grt_no_injection", "grt_no_prelude"}) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["loss_forced_gate"];
      REQUIRE(expected.size() == 3);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      EvalOptions options = at_depths({model->depths().full});
      for (const auto& [gate, loss] : expected.items()) {
        CAPTURE(gate);
        options.forced_gate = std::stof(gate);
        const double mean = evaluate(*model, data, options).by_depth.begin()->second.mean;
        CHECK(std::abs(mean - loss.get<double>()) < kLossTolerance);
      }
    }
  }

  TEST_CASE("a gate forced to 1 is depth 0, bit for bit") {
    const auto model = oracle_model("grt");
    const TokenData data = oracle_tokens("grt", model->config().vocab_size);
    EvalOptions options = at_depths({0, 1, 3, 5});
    const double unforced = evaluate(*model, data, at_depths({0})).by_depth.at(0).mean;
    options.forced_gate = 1.0f;
    const EvalResult forced = evaluate(*model, data, options);
    for (const auto& [depth, loss] : forced.by_depth) CHECK(loss.mean == unforced);
  }

  TEST_CASE("evaluation does not depend on the batch size, the other depths or the threads, bit for bit") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      for (const std::int64_t stride : {0, 5}) {
        EvalOptions options = at_depths(all_depths(*model));
        options.stride = stride;
        options.further = true;
        options.batch_size = 1;
        const EvalResult one = evaluate(*model, data, options);
        for (const std::int64_t batch_size : kSanitized ? std::vector{3, 1000} : std::vector{2, 3, 4, 7, 1000}) {
          CAPTURE(batch_size);
          options.batch_size = batch_size;
          CHECK(same(evaluate(*model, data, options), one));
        }
        const int threads = thread_count();
        set_thread_count(threads == 1 ? 3 : 1);
        CHECK(same(evaluate(*model, data, options), one));
        set_thread_count(threads);
        options.depths = {model->depths().full};
        CHECK(evaluate(*model, data, options).by_depth.begin()->second.mean == one.by_depth.rbegin()->second.mean);
      }
    }
  }

  TEST_CASE("with a stride each token is scored once, in the first window that holds it") {
    for (const std::string name : {"dense", "grt"}) {
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      for (const std::int64_t stride : {1, 7, 29}) {
        CAPTURE(stride);
        const std::vector<double> losses = losses_one_by_one(*model, data, stride);
        const double n = static_cast<double>(losses.size());
        const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / n;
        // The first window scores all its tokens, each later one the `stride` that come new, the last what is left.
        const auto context = static_cast<std::size_t>(model->config().context_length);
        double squares = 0, windows = 0;
        for (std::size_t begin = 0, end = context; begin < losses.size(); begin = end, end += stride, ++windows) {
          end = std::min(end, losses.size());
          double excess = 0;
          for (std::size_t i = begin; i < end; ++i) excess += losses[i] - mean;
          squares += excess * excess;
        }

        EvalOptions options = at_depths({model->depths().full});
        options.stride = stride;
        const EvalResult result = evaluate(*model, data, options);
        CHECK(result.tokens == data.size() - 1);
        const DepthLoss loss = result.by_depth.begin()->second;
        CHECK(loss.mean == doctest::Approx(mean).epsilon(1e-6));
        CHECK(loss.standard_error == doctest::Approx(std::sqrt(squares * windows / (windows - 1)) / n).epsilon(1e-6));
      }
    }
  }

  TEST_CASE("a stride of the context length is the same as none, bit for bit") {
    const auto model = oracle_model("grt");
    const TokenData data = oracle_tokens("grt", model->config().vocab_size);
    EvalOptions options = at_depths({3});
    const EvalResult without = evaluate(*model, data, options);
    options.stride = model->config().context_length;
    CHECK(same(evaluate(*model, data, options), without));
  }

  TEST_CASE("evaluation stops after most_batches, or when its observer says so") {
    const auto model = oracle_model("grt");
    const TokenData data = oracle_tokens("grt", model->config().vocab_size);
    EvalOptions options = at_depths({3});
    options.batch_size = 2;
    options.most_batches = 2;
    std::vector<std::int64_t> seen;
    options.progress = [&](std::int64_t done, std::int64_t all) {
      CHECK(all == 4);
      seen.push_back(done);
      return true;
    };
    const EvalResult part = evaluate(*model, data, options);
    CHECK(part.windows == 4);
    CHECK(part.tokens == 4 * 30);
    CHECK(seen == std::vector<std::int64_t>{2, 4});

    options.most_batches = 0;
    options.progress = [](std::int64_t, std::int64_t) { return false; };
    CHECK(evaluate(*model, data, options).windows == 2);
  }

  TEST_CASE("changing a token changes no logit before it, bit for bit") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const std::int64_t T = model->config().context_length, Vp = model->config().padded_vocab_size;
      std::vector<std::int32_t> ids(T);
      oracle_tokens(name, model->config().vocab_size).read(0, ids);
      const auto logits = [&] {
        const Pass pass{.causal_routing = true};  // top-k would choose by what comes later
        return host_values(model->logits(model->hidden(tokens_of(ids), model->depths().full, pass).value()));
      };
      const std::vector<double> before = logits();
      for (const std::int64_t t : {std::int64_t{1}, T / 2, T - 1}) {
        CAPTURE(t);
        const std::int32_t id = std::exchange(ids[t], (ids[t] + 1) % 97);
        const std::vector<double> after = logits();
        ids[t] = id;
        CHECK(std::equal(before.begin(), before.begin() + t * Vp, after.begin()));
        CHECK(!std::equal(before.begin() + t * Vp, before.end(), after.begin() + t * Vp));
      }
    }
  }

  TEST_CASE("evaluation names the flag that asks for what the model cannot do") {
    struct Row {
      std::string model, says;
      EvalOptions options;
    };
    const Row rows[] = {
        {"grt", "--stride: must be 1..30, the model's context length, not 31", {.depths = {3}, .stride = 31}},
        {"grt", "--stride: must be 1..30, the model's context length, not -1", {.depths = {3}, .stride = -1}},
        {"grt", "--batch-size: must be at least 1, not 0", {.depths = {3}, .batch_size = 0}},
        {"grt", "depth -1", {.depths = {-1}}},
        {"dense", "depth 4: this model has exits at 1..3", {.depths = {4}}},
        {"dense", "depth 0: this model has exits at 1..3", {.depths = {0, 1}}},
        {"dense", "--forced-gate: this dense model has no gate", {.depths = {1}, .forced_gate = 0.5f}},
        {"grt_no_gate", "--forced-gate: this grt model has no gate", {.depths = {1}, .forced_gate = 0.5f}},
        {"grt", "--forced-gate: must be 0..1, not 1.5", {.depths = {1}, .forced_gate = 1.5f}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.says);
      const auto model = oracle_model(row.model);
      const TokenData data = oracle_tokens(row.model, model->config().vocab_size);
      CHECK(contains(error_of([&] { evaluate(*model, data, row.options); }), row.says));
    }
  }
}

}  // namespace grt::test
