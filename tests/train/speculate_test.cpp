// Drafts at a shallow exit and their verification: the text of plain decoding, in fewer passes at full depth.
#include "train/speculate.h"

#include <algorithm>
#include <cmath>

#include "tests/models/toys.h"
#include "tests/train/oracle_models.h"
#include "train/generate.h"

namespace grt::test {
namespace {

using Prompts = std::vector<std::vector<int>>;

Prompts some_prompts(int count, std::int64_t longest) {
  Prompts prompts(count);
  for (int i = 0; i < count; ++i)
    for (std::int64_t t = 0; t <= i % longest; ++t)
      prompts[i].push_back(static_cast<int>(random_below({9, 0, static_cast<std::uint32_t>(i)}, t, 97)));
  return prompts;
}

struct Made {
  std::vector<std::vector<int>> ids;
  std::vector<std::vector<double>> logprobs;
  GenerateStats stats;
};

Made made(const LanguageModel& model, const Prompts& prompts, GenerateOptions options, const std::string& speculate) {
  if (!speculate.empty()) options.speculation = speculation(speculate);
  Made result;
  result.ids.resize(prompts.size() * options.samples);
  result.logprobs.resize(result.ids.size());
  result.stats = generate(model, prompts, options, [&](int sample, const NewToken& token) {
    result.ids[sample].push_back(token.id);
    result.logprobs[sample].push_back(token.logprob);
  });
  return result;
}

GenerateOptions greedy(std::int64_t tokens) {
  GenerateOptions options;
  options.tokens = tokens;
  options.sampling.temperature = 0;
  return options;
}

const std::vector<std::string> kModels = {"grt", "grt_no_gate", "poisson", "ouro", "rrt", "mor", "dense"};

// A model over 5 ids whose exits differ, so that many drafts are refused.
std::unique_ptr<LanguageModel> tiny(const std::string& architecture) {
  Json json{{"architecture", architecture},
            {"vocab_size", 5},
            {"context_length", 8},
            {"d_model", 12},
            {"n_heads", 3},
            {"n_prelude", 1},
            {"n_core", 1},
            {"n_recurrences", 3},
            {"n_coda", 1}};
  if (architecture == "grt") json["gate_bias"] = 0.0;
  auto model = build(json, DType::f32);
  for (const Param& p : model->params().all())
    if (p.decayed()) cpu().kernels().multiply({p.var.value()}, p.var.value(), 14);
  return model;
}

// The probability of each continuation of `length` ids, by the model's scores.
std::vector<double> probabilities(const LanguageModel& model, const std::vector<int>& prompt, int length,
                                  const DecodeOptions& options) {
  std::vector<double> all;
  const int count = static_cast<int>(std::pow(5, length));
  for (int code = 0; code < count; ++code) {
    std::vector<int> ids;
    for (int i = 0, rest = code; i < length; ++i, rest /= 5) ids.push_back(rest % 5);
    double sum = 0;
    for (const double logprob : score(model, prompt, ids, options)) sum += logprob;
    all.push_back(std::exp(sum));
  }
  return all;
}

// Pearson's statistic of counts against probabilities; outcomes that are expected less than 5 times count as one.
struct ChiSquare {
  double value = 0;
  int freedom = -1;
};
ChiSquare chi_square(const std::vector<double>& counts, const std::vector<double>& probabilities, double draws) {
  ChiSquare result;
  double rare_count = 0, rare_expected = 0;
  const auto add = [&](double count, double expected) {
    result.value += (count - expected) * (count - expected) / expected;
    ++result.freedom;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected >= 5) {
      add(counts[i], expected);
    } else {
      rare_count += counts[i];
      rare_expected += expected;
    }
  }
  if (rare_expected > 0) add(rare_count, rare_expected);
  return result;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("prompts are continued token for token and bit for bit as in plain decoding, whatever k and r") {
    const Prompts prompts = some_prompts(kSanitized ? 20 : 200, 9);
    for (const std::string& name : kModels) {
      const auto model = oracle_model(name);
      const Made plain = made(*model, prompts, greedy(20 > model->config().context_length - 9 ? 7 : 20), "");
      const std::int64_t tokens = static_cast<std::int64_t>(plain.ids[0].size());
      for (const std::string how : {"1:1", "3:1", "7:2", "auto", "2"}) {
        CAPTURE(name);
        CAPTURE(how);
        const Made drafted = made(*model, prompts, greedy(tokens), how);
        CHECK(drafted.ids == plain.ids);
        CHECK(drafted.logprobs == plain.logprobs);
        const SpeculationStats& stats = drafted.stats.speculation;
        CHECK(stats.taken <= stats.drafted);
        if (how == "3:1" || how == "7:2") {
          CHECK(stats.taken > 0);
          CHECK(stats.taken < stats.drafted);
          CHECK(stats.passes < static_cast<std::int64_t>(prompts.size()) * (tokens - 1));
        }
      }
    }
  }

  TEST_CASE("grt drafts at depth 0 too") {
    const auto model = oracle_model("grt");
    const Prompts prompts = some_prompts(20, 9);
    const Made drafted = made(*model, prompts, greedy(20), "3:0");
    CHECK(drafted.ids == made(*model, prompts, greedy(20), "").ids);
    CHECK(drafted.stats.speculation.depths.at(0) == drafted.stats.speculation.drafted);
  }

  TEST_CASE("a context that slides, an end and a bound on the depth are those of plain decoding") {
    for (const std::string& name : kModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      GenerateOptions options = greedy(70);
      options.decode.slide = true;
      options.decode.depth = model->depths().full - 1;
      const Prompts prompts = some_prompts(5, 9);
      const Made plain = made(*model, prompts, options, "");
      for (const std::string how : {"4:1", "auto"}) CHECK(made(*model, prompts, options, how).ids == plain.ids);
      options.stop_id = plain.ids[0][30];
      const Made ended = made(*model, prompts, options, "");
      CHECK(ended.ids[0].size() <= 30);
      CHECK(made(*model, prompts, options, "4:1").ids == ended.ids);
    }
  }

  TEST_CASE("a sampled continuation does not depend on what is drafted beside it") {
    for (const std::string how : {"3:1", "auto"}) {
      CAPTURE(how);
      const auto model = oracle_model("ouro");
      GenerateOptions options = greedy(20);
      options.sampling.temperature = 0.7;
      options.samples = 2;
      const Prompts prompts = some_prompts(6, 5);
      const Made all = made(*model, prompts, options, how);
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const Made alone = made(*model, {prompts[p]}, options, how);
        for (std::size_t i = 0; i < 2; ++i) {
          CHECK(alone.ids[i] == all.ids[2 * p + i]);
          CHECK(alone.logprobs[i] == all.logprobs[2 * p + i]);
        }
      }
    }
  }

  TEST_CASE("sampled text has the distribution of full depth, not that of the drafts") {
    constexpr int kDraws = 6000, kLength = 3;
    for (const std::string architecture : {"grt", "ouro"}) {
      const auto model = tiny(architecture);
      const std::vector<int> prompt = {1, 4};
      const std::vector<double> full = probabilities(*model, prompt, kLength, {});
      const std::vector<double> shallow = probabilities(*model, prompt, kLength, {.depth = 1});
      for (const std::string how : {"2:1", "1:1"}) {
        CAPTURE(architecture);
        CAPTURE(how);
        GenerateOptions options = greedy(kLength);
        options.sampling.temperature = 1;
        options.samples = kDraws;
        const Made drafted = made(*model, {prompt}, options, how);
        std::vector<double> counts(full.size());
        for (const std::vector<int>& ids : drafted.ids) ++counts[ids[0] + 5 * ids[1] + 25 * ids[2]];
        const SpeculationStats& stats = drafted.stats.speculation;
        CHECK(stats.taken > stats.drafted / 5);
        CHECK(stats.drafted - stats.taken > stats.drafted / 20);
        // Within five standard deviations of its mean; the drafts' own distribution is far outside.
        const ChiSquare right = chi_square(counts, full, kDraws), wrong = chi_square(counts, shallow, kDraws);
        CAPTURE(right.value);
        CAPTURE(right.freedom);
        CHECK(right.value < right.freedom + 5 * std::sqrt(2.0 * right.freedom));
        CHECK(wrong.value > 3 * (wrong.freedom + 5 * std::sqrt(2.0 * wrong.freedom)));
      }
    }
  }

  TEST_CASE("temperature, top-k and top-p count for drafts and verification alike") {
    const auto model = tiny("ouro");
    GenerateOptions options = greedy(3);
    options.sampling = {.temperature = 0.7, .top_k = 2};
    options.samples = 3000;
    const Made plain = made(*model, {{1, 4}}, options, ""), drafted = made(*model, {{1, 4}}, options, "2:1");
    const auto shares = [&](const Made& m) {
      std::vector<double> counts(125);
      for (const std::vector<int>& ids : m.ids) counts[ids[0] + 5 * ids[1] + 25 * ids[2]] += 1.0 / options.samples;
      return counts;
    };
    const std::vector<double> a = shares(plain), b = shares(drafted);
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK((a[i] > 0.01) <= (b[i] > 0));
      CHECK(std::abs(a[i] - b[i]) < 5 * std::sqrt(2 * std::max(a[i], 0.001) / options.samples));
    }
  }

  TEST_CASE("the number of tokens that drafts bring") {
    CHECK(expected_tokens(0, 5) == 1);
    CHECK(expected_tokens(1, 5) == 6);
    CHECK(expected_tokens(0.5, 3) == 1.875);
  }

  TEST_CASE("left to itself it drafts where drafts are taken, at a depth that pays, and else decodes plainly") {
    // Gates that keep the state: every depth says the same, and depth 0 costs least.
    const auto same = oracle_model("grt");
    const Tensor bias = same->params().find("gate.fc_out.bias")->var.value();
    std::fill_n(bias.data<float>(), bias.numel(), 1000.0f);
    GenerateOptions options = greedy(27);
    options.sampling.temperature = 1;  // the choice depends on what is taken alone, not on time
    const SpeculationStats often = made(*same, some_prompts(4, 3), options, "auto").stats.speculation;
    CHECK(often.taken == often.drafted);
    CHECK(often.depths == std::map<int, std::int64_t>{{0, often.drafted}});
    CHECK(often.drafted == 4 * (6 * 3 + 1));  // a run of four each time, and what is left
    CHECK(often.passes == 4 * 7);

    const auto differing = oracle_model("dense");  // whose exits say different things
    const SpeculationStats seldom = made(*differing, some_prompts(4, 3), options, "auto").stats.speculation;
    CHECK(seldom.drafted > 0);
    CHECK(seldom.drafted < often.drafted);
    CHECK(seldom.passes > 2 * often.passes);
  }

  TEST_CASE("speculation that cannot be is refused by name") {
    for (const char* text : {"", "0", "-1", "x", "2:", "2:x", "2:-1", ":1", "auto:", "2:1:1", "1.5"}) {
      CAPTURE(text);
      CHECK(error_of([&] { speculation(text); }).starts_with("--speculate: must be auto, k, k:r or auto:r"));
    }
    const auto model = oracle_model("grt");
    const auto refuse = [&](const LanguageModel& m, const std::string& how, const DecodeOptions& decode) {
      GenerateOptions options = greedy(3);
      options.decode = decode;
      return error_of([&] { made(m, {{1}}, options, how); });
    };
    CHECK(contains(refuse(*model, "2", {.kv = KvStrategy::mean}), "--speculate: verifies several tokens in one pass"));
    DecodeOptions halting;
    halting.exit = exit_rule("kl:1");
    CHECK(contains(refuse(*model, "2", halting), "does not go with --exit"));
    CHECK(contains(refuse(*model, "2:3", {}), "drafts need a depth of 0..2, not 3"));
    CHECK(contains(refuse(*model, "2", {.depth = 0}), "no exit before depth 0"));
    CHECK(contains(refuse(*oracle_model("ouro"), "2:0", {}), "drafts need a depth of 1..3, not 0"));
    CHECK(contains(refuse(*oracle_model("rrt"), "2", {.depth = 1}), "no exit before depth 1"));
  }
}

}  // namespace grt::test
