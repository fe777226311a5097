// The loss of tokens that stop by a rule: that of decoding them, the rules' extremes, and what it must not depend on.
#include <algorithm>
#include <cmath>

#include "tests/train/oracle_models.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/host.h"

namespace grt::test {
namespace {

struct Case {
  std::string model, rule;
};

// Rules that stop some tokens early and not all.
const Case kRules[] = {{"poisson", "kl:1.1"}, {"grt", "kl:0.05"}, {"grt", "gate:0.29"}, {"ouro", "prob:0.65"}};
constexpr KvStrategy kStrategies[] = {KvStrategy::full, KvStrategy::mean, KvStrategy::last, KvStrategy::first};

EvalOptions with_exits(const LanguageModel& model, const std::vector<std::string>& rules) {
  EvalOptions options;
  options.exit_bound = model.depths().full;
  options.depths = {options.exit_bound};
  for (const std::string& rule : rules) options.exits.push_back(exit_rule(rule));
  return options;
}

// The first windows of a model's tokens.
struct Windows {
  Windows(const std::string& name, const LanguageModel& model, std::size_t count)
      : data(oracle_tokens(name, model.config().vocab_size)) {
    const std::vector<Window> windows = evaluation_windows(data.size(), model.config().context_length);
    batch = evaluation_batch(data, std::span(windows).first(count), cpu());
    for (std::size_t w = 0; w < count; ++w) {
      const std::int64_t T = batch.tokens.dim(1), first = static_cast<std::int64_t>(w) * T;
      std::vector<int>& list =
          ids.emplace_back(batch.tokens.data<std::int32_t>() + first, batch.tokens.data<std::int32_t>() + first + T);
      list.push_back(batch.targets.data<std::int32_t>()[first + T - 1]);
    }
  }
  TokenData data;
  Batch batch;
  std::vector<std::vector<int>> ids;  // of each window, with the last target
};

bool same(const ExitResult& a, const ExitResult& b) {
  return a.loss.mean == b.loss.mean && a.loss.standard_error == b.loss.standard_error && a.depths == b.depths &&
         a.agreement == b.agreement && a.mean_depth == b.mean_depth && a.substituted == b.substituted;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("an evaluated exit rule is the decoder's, window by window: loss, depths and agreement") {
    for (const auto& [name, rule] : kRules) {
      const auto model = oracle_model(name);
      const int full = model->depths().full;
      const Windows windows(name, *model, 2);
      for (const KvStrategy kv : kStrategies) {
        CAPTURE(name);
        CAPTURE(rule);
        CAPTURE(name_of(kv));
        EvalOptions options = with_exits(*model, {rule});
        options.kv = kv;
        options.batch_size = 2;
        options.most_batches = 1;
        const EvalResult result = evaluate(*model, windows.data, options);
        const ExitResult& exit = result.exits.at(0);

        double loss = 0, agreed = 0, tokens = 0;
        std::map<int, double> depths;
        for (const std::vector<int>& ids : windows.ids) {
          DecodeOptions early{.kv = kv};
          early.exit = exit_rule(rule);
          const auto most = static_cast<std::int64_t>(ids.size()) - 1;  // the last is a target
          Decoder decoder(*model, early, most), deep(*model, {.kv = kv}, most);
          for (std::size_t t = 0; t + 1 < ids.size(); ++t, ++tokens) {
            const std::span<const int> one(&ids[t], 1);
            const std::vector<double> p = t == 0 ? decoder.start(one) : decoder.next(one);
            const std::vector<double> q = t == 0 ? deep.start(one) : deep.next(one);
            loss -= logprob(p, ids[t + 1]);
            agreed +=
                std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
            ++depths[decoder.exit_depths()[0]];
          }
        }
        CHECK(exit.loss.mean == doctest::Approx(loss / tokens).epsilon(1e-6));
        CHECK(exit.agreement == agreed / tokens);
        double mean = 0;
        for (auto& [depth, count] : depths) mean += depth * (count /= tokens);
        CHECK(exit.depths == depths);
        CHECK(exit.mean_depth == doctest::Approx(mean));
        CHECK(exit.depths.size() > 1);
        CHECK(exit.agreement < 1);
        CHECK(exit.agreement > 0.05);
        CHECK(exit.substituted > 0);
        CHECK(std::abs(exit.loss.mean - result.by_depth.at(full).mean) > 1e-6);
      }
    }
  }

  TEST_CASE("at its extremes an evaluated rule is a fixed depth, bit for bit, under each strategy") {
    struct Row {
      std::string model, rule;
      int depth;  // 0: full
    };
    for (const auto& [name, rule, fixed] : {Row{"grt", "kl:0", 0},
                                            {"grt", "kl:1e9", 2},
                                            {"grt", "gate:0", 0},
                                            {"grt", "gate:2", 1},
                                            {"poisson", "kl:0", 0},
                                            {"ouro", "prob:0", 1},
                                            {"ouro", "prob:1", 0}}) {
      const auto model = oracle_model(name);
      const Windows windows(name, *model, 3);
      const int full = model->depths().full, depth = fixed > 0 ? fixed : full;
      for (const KvStrategy kv : kStrategies) {
        CAPTURE(name);
        CAPTURE(rule);
        CAPTURE(name_of(kv));
        const Halted halted = decode_halting(*model, windows.batch.tokens, full, {}, kv, exit_rule(rule));
        CHECK(std::count(halted.depths.begin(), halted.depths.end(), depth) == windows.batch.tokens.numel());
        // A mean over R steps counts the last step taken again for those not taken; over fewer steps it does not.
        if (kv == KvStrategy::mean && depth < full) continue;
        decode_exits(*model, windows.batch.tokens, std::span(&depth, 1), {}, kv,
                     [&](int, const Var& z) { CHECK(same_bits(z.value(), halted.z)); });
      }
    }
  }

  TEST_CASE("evaluated exits do not depend on the batch size, the other rules or the stride's windows, bit for bit") {
    for (const std::string name : {"grt", "ouro"}) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const TokenData data = oracle_tokens(name, model->config().vocab_size);
      const std::vector<std::string> rules =
          name == "grt" ? std::vector<std::string>{"kl:0.05", "gate:0.29"} : std::vector<std::string>{"prob:0.65"};
      EvalOptions options = with_exits(*model, rules);
      options.stride = 17;
      options.batch_size = 1;
      const EvalResult one = evaluate(*model, data, options);
      for (const int batch_size : {7, 32}) {
        options.batch_size = batch_size;
        const EvalResult more = evaluate(*model, data, options);
        for (std::size_t i = 0; i < rules.size(); ++i) CHECK(same(more.exits[i], one.exits[i]));
      }
      for (std::size_t i = 0; i < rules.size(); ++i) {
        EvalOptions alone = with_exits(*model, {rules[i]});
        alone.stride = 17;
        CHECK(same(evaluate(*model, data, alone).exits[0], one.exits[i]));
      }
      double shares = 0;
      for (const auto& [depth, share] : one.exits[0].depths) shares += share;
      CHECK(shares == doctest::Approx(1).epsilon(1e-12));
    }
  }

  TEST_CASE("decoding with a cache at a depth scores what evaluation at that depth does, for every model and depth") {
    for (const std::string& name : kOracleModels) {
      const auto model = oracle_model(name, DType::f64);
      const Windows windows(name, *model, 2);
      EvalOptions options;
      for (int d = model->depths().lowest; d <= model->depths().full; ++d) options.depths.push_back(d);
      options.batch_size = 2;
      options.most_batches = 1;
      options.causal_routing = true;
      const EvalResult result = evaluate(*model, windows.data, options);
      for (const int depth : options.depths) {
        CAPTURE(name);
        CAPTURE(depth);
        double sum = 0, tokens = 0;
        for (const std::vector<int>& ids : windows.ids)
          for (const double logprob :
               score(*model, std::span(ids).first(3), std::span(ids).subspan(3), {.depth = depth}))
            sum -= logprob, ++tokens;
        for (const std::vector<int>& ids : windows.ids)  // those of the prompt
          for (const double logprob :
               score(*model, std::span(ids).first(1), std::span(ids).subspan(1, 2), {.depth = depth, .cached = false}))
            sum -= logprob, ++tokens;
        CHECK(result.by_depth.at(depth).mean == doctest::Approx(sum / tokens).epsilon(1e-11));
      }
    }
  }

  TEST_CASE("texts about as long as the context are scored token by token, each but the first once") {
    const auto model = oracle_model("grt");
    const std::int64_t T = model->config().context_length;
    for (const std::int64_t length : {std::int64_t{2}, T, T + 1, T + 2, 3 * T - 1, 3 * T + 1}) {
      CAPTURE(length);
      std::vector<std::uint16_t> ids;
      for (std::int64_t i = 0; i < length; ++i) ids.push_back(static_cast<std::uint16_t>(37 * i * i % 97));
      const TokenData data = TokenData::of(ids, "text", 97);
      EvalOptions options = with_exits(*model, {"kl:0"});
      const EvalResult result = evaluate(*model, data, options);
      CHECK(result.tokens == length - 1);
      double sum = 0;
      for (std::int64_t begin = 0; begin + 1 < length; begin += T) {
        const std::vector<int> window(ids.begin() + begin, ids.begin() + std::min(begin + T + 1, length));
        for (const double logprob : score(*model, std::span(window).first(1), std::span(window).subspan(1), {}))
          sum -= logprob;
      }
      CHECK(result.by_depth.at(3).mean * static_cast<double>(length - 1) == doctest::Approx(sum).epsilon(1e-5));
      CHECK(result.exits[0].loss.mean == doctest::Approx(result.by_depth.at(3).mean).epsilon(1e-5));
      options.batch_size = 1;
      CHECK(evaluate(*model, data, options).by_depth.at(3).mean == result.by_depth.at(3).mean);
    }
  }

  TEST_CASE("a rule that the model cannot follow, or no step to stop before, is refused by name") {
    const auto model = oracle_model("grt");
    const TokenData data = oracle_tokens("grt", 97);
    CHECK(contains(error_of([&] { evaluate(*model, data, with_exits(*model, {"prob:0.5"})); }),
                   "--exit: prob is a rule"));
    EvalOptions options = with_exits(*model, {"kl:1"});
    options.depths = {0};
    options.exit_bound = 0;
    CHECK(contains(error_of([&] { evaluate(*model, data, options); }), "--exit: at --depth 0"));
    for (const char* text : {"kl:0.0005", "gate:0.29", "prob:1"}) CHECK(text_of(exit_rule(text)) == text);
  }
}

}  // namespace grt::test
