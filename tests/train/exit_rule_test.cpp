// Tokens that stop on their own: the reference's measures, the rules' extremes, the cache, batches.
#include "train/exit_rule.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/train/oracle_models.h"
#include "train/distribution.h"
#include "train/generate.h"

namespace grt::test {
namespace {

const std::vector<std::string> kKlModels = {"poisson",          "grt",           "grt_concat_norm", "grt_no_gate",
                                            "grt_no_injection", "grt_no_prelude"};
constexpr KvStrategy kStrategies[] = {KvStrategy::full, KvStrategy::mean, KvStrategy::last, KvStrategy::first};

// What a rule looks at after each step, of each token of window 0, no token having stopped: [depth - 1][position].
std::vector<std::vector<double>> readings(const std::string& name, const LanguageModel& model, HaltKind kind) {
  const TokenData data = oracle_tokens(name, model.config().vocab_size);
  const Window window = evaluation_windows(data.size(), model.config().context_length).front();
  const Batch batch = evaluation_batch(data, std::span(&window, 1), cpu());
  std::vector<int> depths;
  for (int depth = 1; depth <= model.depths().full; ++depth) depths.push_back(depth);
  ExitMeter meter(model, kind);
  std::vector<std::vector<double>> all;
  model.exits(batch.tokens, depths, {.look = meter.look()},
              [&](int, const Var& z) { all.push_back(meter.read(z.value())); });
  return all;
}

struct Case {
  std::string model, rule;
};

struct Made {
  std::vector<std::vector<int>> ids;
  std::vector<std::vector<double>> logprobs;
  GenerateStats stats;
  bool operator==(const Made& other) const { return ids == other.ids && logprobs == other.logprobs; }
};

Made made(const LanguageModel& model, const std::vector<std::vector<int>>& prompts, const DecodeOptions& decode,
          std::int64_t tokens = 12, bool compare = false) {
  GenerateOptions options;
  options.tokens = tokens;
  options.sampling.temperature = 0;
  options.decode = decode;
  options.compare = compare;
  Made result;
  result.ids.resize(prompts.size());
  result.logprobs.resize(prompts.size());
  result.stats = generate(model, prompts, options, [&](int sample, const NewToken& token) {
    result.ids[sample].push_back(token.id);
    result.logprobs[sample].push_back(token.logprob);
  });
  return result;
}

const std::vector<std::vector<int>> kPrompts = {{5, 60, 7, 81}, {3}, {44, 2, 91, 17, 17, 6, 30}};

DecodeOptions with_exit(const std::string& rule, KvStrategy kv = KvStrategy::full, bool slide = false) {
  DecodeOptions options;
  options.kv = kv;
  options.exit = exit_rule(rule);
  options.slide = slide;
  return options;
}

// Rules that stop some tokens early and not all.
const Case kRules[] = {{"poisson", "kl:1.1"}, {"grt", "kl:0.05"},    {"grt_concat_norm", "kl:0.09"},
                       {"grt", "gate:0.29"},  {"ouro", "prob:0.65"}, {"grt_no_prelude", "gate:0.37"}};

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("KL of known distributions") {
    std::vector<double> p{std::log(1.0), std::log(3.0)}, q{std::log(2.0), std::log(2.0)};
    log_softmax(p);
    log_softmax(q);
    CHECK(std::exp(p[1]) == doctest::Approx(0.75));
    CHECK(kl_divergence(p, p) == 0);
    CHECK(kl_divergence(p, q) == doctest::Approx(0.25 * std::log(0.5) + 0.75 * std::log(1.5)));
    CHECK(kl_divergence(q, p) == doctest::Approx(0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3)));
  }

  TEST_CASE("the divergence of successive exits is the reference's") {
    for (const std::string& name : kKlModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["exit"];
      const auto model = oracle_model(name);
      const auto found = readings(name, *model, HaltKind::kl);
      for (std::size_t i = 0; i < expected["positions"].size(); ++i) {
        const auto position = expected["positions"][i].get<std::size_t>();
        CHECK(std::isinf(found[0][position]));
        REQUIRE(expected["kl"][i].size() == found.size() - 1);
        for (std::size_t j = 0; j + 1 < found.size(); ++j)
          CHECK(std::abs(found[j + 1][position] - expected["kl"][i][j].get<double>()) < kLogitTolerance);
      }
    }
  }

  TEST_CASE("ouro: the step at which each position stops is the reference's, and so are the probabilities") {
    const Json expected = oracle_values("ouro")["exit"];
    const auto model = oracle_model("ouro");
    const auto found = readings("ouro", *model, HaltKind::prob);
    for (const auto& [threshold, steps] : expected["exit_step"].items()) {
      CAPTURE(threshold);
      const double q = std::stod(threshold);
      for (std::size_t position = 0; position < steps.size(); ++position) {
        int step = 1;
        while (step < 4 && found[step - 1][position] < q) ++step;
        CHECK(step == steps[position].get<int>());
      }
    }
    for (std::size_t i = 0; i < expected["positions"].size(); ++i) {
      double sum = 0;
      for (std::size_t t = 0; t < 3; ++t)
        CHECK(std::abs(found[t][expected["positions"][i]] - (sum += expected["p"][i][t].get<double>())) < 1e-5);
    }
  }

  TEST_CASE("the gate's openness is the mean of 1 - g over the features") {
    const auto model = oracle_model("grt_concat_norm", DType::f64);  // tau 0.8
    const TokenData data = oracle_tokens("grt_concat_norm", 257);
    const Window window = evaluation_windows(data.size(), 30).front();
    const Batch batch = evaluation_batch(data, std::span(&window, 1), cpu());
    std::vector<std::vector<double>> states, proposals;
    const Look look = [&](std::string_view what, int step, const Tensor& value) {
      if (what == "state") states.push_back(values(value));
      if (what == "proposal" && step > 0) proposals.push_back(values(value));
    };
    model->hidden(batch.tokens, 4, {.look = &look});
    const auto found = readings("grt_concat_norm", *model, HaltKind::gate);
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t t = 0; t < 30; ++t) {
        double mean = 0;  // from h' = g h + (1 - g) o
        for (std::size_t c = 24 * t; c < 24 * (t + 1); ++c)
          mean += (states[r + 1][c] - states[r][c]) / (proposals[r][c] - states[r][c]) / 24;
        CHECK(found[r][t] == doctest::Approx(mean).epsilon(1e-5));
      }
  }

  TEST_CASE("at its extremes a rule is a fixed depth, bit for bit, under each strategy") {
    struct Extreme {
      std::string model, never, at_once;
      int lowest;
    };
    for (const auto& [name, never, at_once, lowest] :
         {Extreme{"poisson", "kl:0", "kl:1e9", 2}, Extreme{"grt", "kl:0", "kl:1e9", 2},
          Extreme{"grt", "gate:0", "gate:1.01", 1}, Extreme{"ouro", "prob:1", "prob:0", 1}}) {
      const auto model = oracle_model(name);
      for (const KvStrategy kv : kStrategies) {
        CAPTURE(never);
        CAPTURE(name_of(kv));
        CHECK(made(*model, kPrompts, with_exit(never, kv)) == made(*model, kPrompts, {.kv = kv}));
        const Made fixed = made(*model, kPrompts, {.depth = lowest, .kv = kv});
        const Made early = made(*model, kPrompts, with_exit(at_once, kv));
        // A mean counts the last step once more for each that is missing, which after two steps is not their mean.
        if (kv != KvStrategy::mean) CHECK(early == fixed);
        if (lowest == 1) CHECK(early.ids == fixed.ids);
        CHECK(early.stats.depths == std::map<int, std::int64_t>{{lowest, 36}});
      }
    }
  }

  TEST_CASE("tokens stop at depths of their own, the same in any batch") {
    for (const auto& [name, rule] : kRules) {
      const auto model = oracle_model(name);
      for (const KvStrategy kv : kStrategies) {
        CAPTURE(name);
        CAPTURE(rule);
        CAPTURE(name_of(kv));
        const Made all = made(*model, kPrompts, with_exit(rule, kv));
        CHECK(all.stats.depths.size() > 1);
        std::map<int, std::int64_t> depths;
        for (std::size_t i = 0; i < kPrompts.size(); ++i) {
          const Made alone = made(*model, {kPrompts[i]}, with_exit(rule, kv));
          CHECK(alone.ids[0] == all.ids[i]);
          CHECK(alone.logprobs[0] == all.logprobs[i]);
          for (const auto& [depth, tokens] : alone.stats.depths) depths[depth] += tokens;
        }
        CHECK(depths == all.stats.depths);
      }
    }
  }

  // The gate does not look at the coda, so that the order in which tokens come does not matter to it.
  TEST_CASE("by the gate a prompt in one pass is what it is token by token") {
    for (const std::string name : {"grt", "grt_concat_norm", "grt_no_prelude"}) {
      CAPTURE(name);
      std::set<std::int64_t> copied;
      const auto model = oracle_model(name, DType::f64);
      for (const std::string rule : {"gate:0.29", "gate:0.35", "gate:0.39"}) {
        CAPTURE(rule);
        Decoder at_once(*model, with_exit(rule), 20), one_by_one(*model, with_exit(rule), 20);
        std::vector<int> prompt;
        for (int i = 0; i < 20; ++i) prompt.push_back(static_cast<int>(random_below({3, 0, 0}, i, 97)));
        const std::vector<double> expected = at_once.start(prompt);
        std::vector<double> logits = one_by_one.start(std::vector<int>{prompt[0]});
        for (int i = 1; i < 20; ++i) logits = one_by_one.next(std::vector<int>{prompt[i]});
        REQUIRE(logits.size() == expected.size());
        for (std::size_t i = 0; i < logits.size(); ++i) CHECK(std::abs(logits[i] - expected[i]) < 1e-11);
        CHECK(at_once.substituted() == one_by_one.substituted());
        CHECK(at_once.exit_depths() == one_by_one.exit_depths());
        copied.insert(at_once.substituted());
      }
      CHECK(copied.size() > 1);
    }
  }

  TEST_CASE("a context slides with tokens that stop early, and a depth bounds them") {
    for (const auto& [name, rule] : kRules) {
      CAPTURE(name);
      CAPTURE(rule);
      const auto model = oracle_model(name);
      CHECK(made(*model, kPrompts, with_exit(rule, KvStrategy::full, true), 50).ids[0].size() == 50);
      DecodeOptions bounded = with_exit(rule);
      bounded.depth = 2;
      for (const auto& [depth, tokens] : made(*model, kPrompts, bounded).stats.depths) CHECK(depth <= 2);
    }
  }

  TEST_CASE("agreement counts the tokens that full depth chooses after the same text") {
    const auto model = oracle_model("grt");
    CHECK(made(*model, kPrompts, with_exit("kl:0"), 12, true).stats.agreement.value() == 1);
    const Made early = made(*model, kPrompts, with_exit("kl:1e9"), 12, true);
    std::int64_t same = 0;
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      Decoder full(*model, {}, 30);
      std::vector<double> logits = full.start(kPrompts[i]);
      for (const int id : early.ids[i]) {
        same += std::max_element(logits.begin(), logits.end()) - logits.begin() == id;
        logits = full.next(std::vector<int>{id});
      }
    }
    CHECK(early.stats.agreement.value() == doctest::Approx(static_cast<double>(same) / 36));
    CHECK(same < 36);
  }

  TEST_CASE("a rule that means nothing is refused by name") {
    for (const char* text : {"", "kl", "kl:", "kl:x", "kl:-1", "kl:nan", "kl:inf", "kl:1x", "prob:1.1", "prob:-0.1",
                             "entropy:1", "gate:nan", "KL:1"}) {
      CAPTURE(text);
      CHECK(error_of([&] { exit_rule(text); }).starts_with("--exit: "));
    }
    CHECK(exit_rule("kl:5e-4").threshold == 5e-4);
    struct Row {
      std::string model, rule, says;
    };
    for (const auto& [name, rule, says] :
         {Row{"dense", "kl:1", "--exit: kl is a rule of grt and poisson, not of this dense model"},
          Row{"mor", "kl:1", "not of this mor model"}, Row{"rrt", "kl:1", "not of this rrt model"},
          Row{"ouro", "gate:1", "gate is a rule of grt with its gate, not of this ouro model"},
          Row{"grt_no_gate", "gate:1", "grt with its gate"}, Row{"grt", "prob:1", "prob is a rule of ouro"}})
      CHECK(contains(error_of([&] { made(*oracle_model(name), kPrompts, with_exit(rule)); }), says));
    DecodeOptions none = with_exit("kl:1");
    none.depth = 0;
    CHECK(contains(error_of([&] { made(*oracle_model("grt"), kPrompts, none); }), "at --depth 0"));
  }
}

}  // namespace grt::test
