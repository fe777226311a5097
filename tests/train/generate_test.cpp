// The decoder against recomputation and the reference continuations, and the choice of a token.
#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

std::vector<NewToken> continuation(const LanguageModel& model, const std::vector<int>& prompt,
                                   const GenerateOptions& options, int sample = 0) {
  std::vector<NewToken> tokens;
  generate(model, prompt, options, [&](int i, const NewToken& token) {
    if (i == sample) tokens.push_back(token);
  });
  return tokens;
}

std::vector<int> ids_of(const std::vector<NewToken>& tokens) {
  std::vector<int> ids;
  for (const NewToken& token : tokens) ids.push_back(token.id);
  return ids;
}

GenerateOptions greedy(std::int64_t tokens, bool cached = true, bool slide = false) {
  GenerateOptions options;
  options.tokens = tokens;
  options.sampling.temperature = 0;
  options.decode = {.slide = slide, .cached = cached};
  return options;
}

// The i-th of some ids below 97.
int some_id(std::uint64_t i) { return static_cast<int>(random_below({5, 0, 0}, i, 97)); }
std::vector<int> some_ids(std::int64_t n) {
  std::vector<int> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(some_id(i));
  return ids;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

constexpr KvStrategy kReduced[] = {KvStrategy::mean, KvStrategy::last, KvStrategy::first};

// How often each id is chosen over many positions.
std::vector<double> frequencies(const std::vector<double>& logits, const Sampling& sampling) {
  constexpr int kDraws = 20000;
  std::vector<double> share(logits.size());
  for (int position = 0; position < kDraws; ++position) share[choose(logits, sampling, 0, position).id] += 1.0 / kDraws;
  return share;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("greedy continuations are the reference's, with and without a cache") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json decode = oracle_values(name)["decode"];
      const auto model = oracle_model(name);
      const std::vector<double> logprobs = decode["full"]["logprobs"];
      for (const bool cached : {true, false}) {
        const auto tokens = continuation(*model, decode["prompt"], greedy(decode["n_tokens"], cached));
        CHECK(ids_of(tokens) == decode["full"]["tokens"].get<std::vector<int>>());
        REQUIRE(tokens.size() == logprobs.size());
        for (std::size_t i = 0; i < tokens.size(); ++i)
          CHECK(std::abs(tokens[i].logprob - logprobs[i]) < kLogitTolerance);
      }
    }
  }

  TEST_CASE("under each strategy of the cache continuations and scores are the reference's") {
    int models = 0;
    for (const std::string& name : kOracleModels) {
      const auto model = oracle_model(name);
      if (!model->reduces_kv()) continue;
      ++models;
      for (const KvStrategy kv : kReduced) {
        CAPTURE(name);
        CAPTURE(name_of(kv));
        const Json decode = oracle_values(name)["decode"], expected = decode[name_of(kv)];
        GenerateOptions options = greedy(decode["n_tokens"]);
        options.decode.kv = kv;
        const auto tokens = continuation(*model, decode["prompt"], options);
        CHECK(ids_of(tokens) == expected["tokens"].get<std::vector<int>>());
        std::vector<double> logprobs;
        for (const NewToken& token : tokens) logprobs.push_back(token.logprob);
        CHECK(largest_difference(logprobs, expected["logprobs"]) < kLogitTolerance);

        const Json scores = oracle_values(name)["score"];
        const std::vector<int> context = scores["context"], ids = scores["continuation"];
        CHECK(largest_difference(score(*model, context, ids, {.kv = kv}), scores[name_of(kv)]) < kLogitTolerance);
      }
    }
    CHECK(models == 7);
  }

  TEST_CASE(
      "a reduced cache: the prompt is exact, one step loses nothing, the batch has no part in it, memory is less") {
    for (const std::string name : {"grt", "grt_no_gate", "poisson", "ouro"}) {
      const auto model = oracle_model(name);
      for (const KvStrategy kv : kReduced) {
        CAPTURE(name);
        CAPTURE(name_of(kv));
        Decoder exact(*model, {}, 12), reduced(*model, {.kv = kv}, 12), alone(*model, {.kv = kv}, 12);
        CHECK(exact.start(some_ids(5)) == reduced.start(some_ids(5)));
        alone.start(some_ids(5));
        reduced.fork(3);
        exact.fork(3);
        for (int t = 0; t < 7; ++t) {
          const std::vector<int> ids = {some_id(100 + t), some_id(200 + t), some_id(300 + t)};
          const auto all = reduced.next(ids), mine = alone.next(std::vector<int>{ids[1]});
          CHECK(std::equal(mine.begin(), mine.end(), all.begin() + 97));
          CHECK(largest_difference(exact.next(ids), all) > 1e-4);
        }
        const KvLayout layout = model->kv_layout(model->depths().full);
        CHECK(exact.cache_bytes() * (layout.before + layout.core + layout.after) ==
              reduced.cache_bytes() * layout.applications());

        Decoder one(*model, {.depth = 1}, 12), same(*model, {.depth = 1, .kv = kv}, 12);
        CHECK(one.start(some_ids(5)) == same.start(some_ids(5)));
        for (int t = 0; t < 7; ++t)
          CHECK(one.next(std::vector<int>{some_id(t)}) == same.next(std::vector<int>{some_id(t)}));
      }
    }
  }

  TEST_CASE("a reduced cache keeps the mean, the last or the first of the steps' keys and values") {
    for (const std::string name : {"grt", "poisson", "ouro"}) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      const int depth = model->depths().full;
      const KvLayout layout = model->kv_layout(depth);
      const std::vector<int> ids = some_ids(5);
      const Tensor tokens =
          Tensor::from<std::int32_t>({1, 5}, std::vector<std::int32_t>(ids.begin(), ids.end()), cpu());
      const auto filled = [&](KvStrategy kv) {
        KvCache cache = model->make_cache(1, 5, depth, kv);
        model->hidden(tokens, depth, {.cache = &cache});
        return cache;
      };
      const KvCache all = filled(KvStrategy::full), mean = filled(KvStrategy::mean);
      const KvCache last = filled(KvStrategy::last), first = filled(KvStrategy::first);
      const auto of = [&](const KvCache& cache, int step, int layer) {
        return values(cache.slot(layout.before + step * layout.core + layer).keys);
      };
      for (int layer = 0; layer < layout.core; ++layer) {
        std::vector<double> expected(5 * model->config().d_model);
        for (int step = 0; step < depth; ++step)
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += of(all, step, layer)[i] / depth;
        CHECK(largest_difference(of(mean, 0, layer), expected) < 1e-6);  // 1 / depth is a float
        CHECK(of(last, 0, layer) == of(all, depth - 1, layer));
        CHECK(of(first, 0, layer) == of(all, 0, layer));
        CHECK(largest_difference(of(all, 0, layer), of(all, depth - 1, layer)) > 1e-3);
      }
      for (const KvCache* cache : {&mean, &last, &first})
        for (const int application : {0, layout.applications() - 1})
          CHECK(same_bits(cache->slot(application).values, all.slot(application).values));
    }
  }

  TEST_CASE("scores of a given continuation are the reference's") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["score"];
      const auto model = oracle_model(name);
      const std::vector<int> context = expected["context"], ids = expected["continuation"];
      CHECK(largest_difference(score(*model, context, ids, {}), expected["full"]) < kLogitTolerance);
      CHECK(largest_difference(score(*model, context, ids, {.cached = false}), expected["full"]) < kLogitTolerance);
    }
  }

  // In f64, where one slot too few or a stale one cannot hide behind rounding.
  TEST_CASE("decoding with a cache equals recomputation, at any depth and for sequences side by side") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      for (const int depth : {1, 2, 4}) {
        if (depth > model->depths().highest) continue;
        CAPTURE(depth);
        for (const int sequences : {1, 3}) {
          Decoder cached(*model, {.depth = depth}, 12), plain(*model, {.depth = depth, .cached = false}, 12);
          CHECK(largest_difference(cached.start(some_ids(5)), plain.start(some_ids(5))) < 1e-12);
          cached.fork(sequences);
          plain.fork(sequences);
          for (int t = 0; t < 7; ++t) {
            std::vector<int> ids;
            for (int i = 0; i < sequences; ++i) ids.push_back(some_id(100 + 10 * t + i));
            CHECK(largest_difference(cached.next(ids), plain.next(ids)) < 1e-12);
          }
          const std::int64_t slots = static_cast<std::int64_t>(model->applications(depth).size());
          CHECK(cached.cache_bytes() == slots * 2 * sequences * 12 * model->config().d_model * 8);
          CHECK(plain.cache_bytes() == 0);
        }
      }
    }
  }

  TEST_CASE("a token takes as many steps whether it comes in the prompt or after it, with a cache or without") {
    for (const std::string name : {"mor", "mor_mlp_router"}) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const std::vector<int> ids = some_ids(29);
      Decoder at_once(*model, {.count_steps = true}, 29);
      at_once.start(ids);
      const std::vector<int> expected = at_once.steps().at(0);
      REQUIRE(expected.size() == 29);
      CHECK(*std::min_element(expected.begin(), expected.end()) == 1);
      CHECK(*std::max_element(expected.begin(), expected.end()) > 1);
      for (const std::int64_t prompt : {1, 11})
        for (const bool cached : {true, false}) {
          Decoder one_by_one(*model, {.cached = cached, .count_steps = true}, 29);
          one_by_one.start(std::span(ids).first(prompt));
          one_by_one.fork(2);
          for (std::int64_t t = prompt; t < 29; ++t) one_by_one.next(std::vector<int>(2, ids[t]));
          CHECK(one_by_one.steps() == std::vector<std::vector<int>>(2, expected));
        }
    }
  }

  TEST_CASE("steps are kept of all tokens of a text that slides, and of an ended sample up to its end") {
    const auto grt = oracle_model("grt");
    const std::int64_t T = grt->config().context_length;
    Decoder sliding(*grt, {.depth = 2, .slide = true, .count_steps = true}, 1000);
    sliding.start(some_ids(3));
    for (std::int64_t n = 3; n < 2 * T; ++n) sliding.next(std::vector<int>{some_id(n)});
    CHECK(sliding.steps() == std::vector<std::vector<int>>{std::vector<int>(2 * T, 2)});

    GenerateOptions options = greedy(6);
    options.decode.count_steps = true;
    const auto ids = ids_of(continuation(*grt, some_ids(3), options));
    CHECK(generate(*grt, some_ids(3), options, [](int, const NewToken&) {}).steps[0].size() == 3 + 5);
    options.stop_id = ids[2];
    const std::size_t kept = std::find(ids.begin(), ids.end(), ids[2]) - ids.begin();
    CHECK(generate(*grt, some_ids(3), options, [](int, const NewToken&) {}).steps[0].size() == 3 + kept);
  }

  TEST_CASE("a context that slides is the newer half of a full one, computed anew") {
    for (const std::string name : {"dense", "grt", "grt_no_injection"}) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      const std::int64_t T = model->config().context_length, half = (T + 1) / 2;
      Decoder sliding(*model, {.slide = true}, 1000);
      std::vector<double> logits = sliding.start(some_ids(3));
      for (std::int64_t n = 4; n <= 3 * T; ++n) {
        logits = sliding.next(std::vector<int>{some_id(n - 1)});
        std::vector<int> window = some_ids(n);
        while (static_cast<std::int64_t>(window.size()) > T) window.erase(window.begin(), window.begin() + half);
        Decoder fresh(*model, {}, T);
        CHECK(largest_difference(logits, fresh.start(window)) < 1e-12);
      }
      Decoder at_once(*model, {.slide = true}, 1000);
      CHECK(largest_difference(at_once.start(some_ids(3 * T)), logits) < 1e-12);
    }
  }

  // One half after another, each by moving all that follows, would take minutes.
  TEST_CASE("a prompt of millions of tokens slides at once") {
    const auto model = oracle_model("grt");
    const std::int64_t n = 5'000'001, T = model->config().context_length, half = (T + 1) / 2;
    std::vector<int> prompt(n);
    for (std::int64_t i = 0; i < n; ++i) prompt[i] = static_cast<int>(i * i % 97);
    const std::int64_t dropped = (n - T + half - 1) / half * half;
    Decoder decoder(*model, {.slide = true}, n), fresh(*model, {}, T);
    CHECK(decoder.start(prompt) == fresh.start(std::span(prompt).subspan(dropped)));
  }

  TEST_CASE("generation past the context length slides when told and fails otherwise") {
    const auto model = oracle_model("grt");  // 30 positions
    CHECK(ids_of(continuation(*model, {1, 2, 3}, greedy(100, true, true))) ==
          ids_of(continuation(*model, {1, 2, 3}, greedy(100, false, true))));
    CHECK(continuation(*model, {1, 2, 3}, greedy(28)).size() == 28);  // the last is chosen after 30 tokens
    const std::string error = error_of([&] { continuation(*model, {1, 2, 3}, greedy(29)); });
    CHECK(contains(error, "take 31 tokens of context, but the model's context_length is 30"));
    CHECK(contains(error, "--overflow slide"));
  }

  TEST_CASE("a sample does not depend on how many there are, and differs from the others") {
    for (const std::string name : {"dense", "grt"}) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      GenerateOptions options = greedy(20);
      options.sampling.temperature = 1.5;
      std::vector<std::vector<NewToken>> samples;
      for (int i = 0; i < 5; ++i) {
        options.samples = 5;
        samples.push_back(continuation(*model, {7, 8, 9}, options, i));
        options.samples = i + 1;
        const auto fewer = continuation(*model, {7, 8, 9}, options, i);
        REQUIRE(fewer.size() == 20);
        for (int t = 0; t < 20; ++t) {
          CHECK(fewer[t].id == samples[i][t].id);
          CHECK(fewer[t].logprob == samples[i][t].logprob);
        }
        for (int j = 0; j < i; ++j) CHECK(ids_of(samples[i]) != ids_of(samples[j]));
      }
    }
  }

  TEST_CASE("random choices depend on the seed and the position alone") {
    const auto model = oracle_model("grt");
    GenerateOptions options = greedy(20);
    options.sampling.temperature = 2;
    const std::vector<int> whole = ids_of(continuation(*model, {7, 8, 9}, options));
    CHECK(ids_of(continuation(*model, {7, 8, 9}, options)) == whole);

    std::vector<int> parts = {7, 8, 9};
    options.tokens = 10;
    for (int part = 0; part < 2; ++part)
      for (const int id : ids_of(continuation(*model, parts, options))) parts.push_back(id);
    CHECK(std::vector<int>(parts.begin() + 3, parts.end()) == whole);

    options.tokens = 20;
    options.sampling.seed = 1;
    CHECK(ids_of(continuation(*model, {7, 8, 9}, options)) != whole);
  }

  TEST_CASE("a sample ends before its stop id, the others go on") {
    const auto model = oracle_model("grt");
    GenerateOptions options = greedy(20);
    options.sampling.temperature = 1.5;
    options.samples = 3;
    const std::vector<int> first = ids_of(continuation(*model, {7}, options, 0));
    std::vector<std::vector<int>> expected;
    options.stop_id = first[4];
    for (int i = 0; i < 3; ++i) {
      options.stop_id.reset();
      std::vector<int> ids = ids_of(continuation(*model, {7}, options, i));
      options.stop_id = first[4];
      ids.erase(std::find(ids.begin(), ids.end(), first[4]), ids.end());
      CHECK(ids_of(continuation(*model, {7}, options, i)) == ids);
      expected.push_back(ids);
    }
    CHECK(expected[0].size() < 5);
    CHECK(std::max(expected[1].size(), expected[2].size()) > expected[0].size());
  }

  TEST_CASE("rows of padding are never sampled") {
    const auto model = oracle_model("grt");  // 97 ids in 128 rows
    GenerateOptions options = greedy(400, true, true);
    options.sampling.temperature = 1e9;  // nearly uniform
    options.samples = 4;
    int largest = 0;
    generate(*model, std::vector<int>{1}, options,
             [&](int, const NewToken& token) { largest = std::max(largest, token.id); });
    CHECK(largest == 96);
  }

  TEST_CASE("a token is chosen in proportion to its probability") {
    const std::vector<double> logits = {0.5, -1, 2, 1.9, -30, 0};
    for (const double temperature : {0.7, 1.0, 3.0}) {
      CAPTURE(temperature);
      std::vector<double> expected;
      for (const double l : logits) expected.push_back(std::exp(l / temperature));
      const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
      const std::vector<double> share = frequencies(logits, {.temperature = temperature});
      // Five standard deviations of a share near one half in 20000 draws.
      for (std::size_t id = 0; id < logits.size(); ++id) CHECK(std::abs(share[id] - expected[id] / sum) < 0.018);
    }
  }

  TEST_CASE("top-k and top-p keep the likeliest tokens and their proportions") {
    const std::vector<double> logits = {std::log(0.1), std::log(0.4), std::log(0.1), std::log(0.2), std::log(0.2)};
    struct Row {
      Sampling sampling;
      std::vector<double> expected;
    };
    const Row rows[] = {
        {{.temperature = 1, .top_k = 2}, {0, 2 / 3., 0, 1 / 3., 0}},  // of equals, the lower id
        {{.temperature = 1, .top_k = 4}, {1 / 9., 4 / 9., 0, 2 / 9., 2 / 9.}},
        {{.temperature = 1, .top_p = 0.39}, {0, 1, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.41}, {0, 2 / 3., 0, 1 / 3., 0}},
        {{.temperature = 1, .top_p = 0.75}, {0, 0.5, 0, 0.25, 0.25}},
        {{.temperature = 1, .top_k = 3, .top_p = 0.7},
         {0, 2 / 3., 0, 1 / 3., 0}},  // 0.6 of 0.8 is the share that counts
    };
    for (const Row& row : rows) {
      CAPTURE(row.sampling.top_k);
      CAPTURE(row.sampling.top_p);
      const std::vector<double> share = frequencies(logits, row.sampling);
      for (std::size_t id = 0; id < logits.size(); ++id) {
        CHECK(std::abs(share[id] - row.expected[id]) < 0.018);
        CHECK((share[id] > 0) == (row.expected[id] > 0));
      }
    }
  }

  TEST_CASE("extreme sampling flags have a meaning") {
    const std::vector<double> logits = {1, 3, 3, -2, 3, -1e30};
    for (const Sampling& likeliest :
         {Sampling{.temperature = 0}, Sampling{.temperature = 1e-8, .top_k = 1}, Sampling{.temperature = 5, .top_k = 1},
          Sampling{.temperature = 5, .top_p = 1e-300}})
      CHECK(frequencies(logits, likeliest)[1] == doctest::Approx(1));  // the lowest of equals

    for (const double tiny : {1e-8, 1e-300, 5e-324}) {
      const std::vector<double> share = frequencies(logits, {.temperature = tiny});
      CHECK(share[1] + share[2] + share[4] == doctest::Approx(1));
      CHECK(share[4] > 0.3);
    }
    for (int position = 0; position < 200; ++position) {
      const int all = choose(logits, {.temperature = 2}, 0, position).id;
      CHECK(choose(logits, {.temperature = 2, .top_k = 6}, 0, position).id == all);
      CHECK(choose(logits, {.temperature = 2, .top_k = 1000000}, 0, position).id == all);
    }
    const NewToken token = choose(logits, {.temperature = 7, .top_k = 1}, 0, 0);
    const double sum = 3 * std::exp(3.0) + std::exp(1.0) + std::exp(-2.0);
    CHECK(token.logprob == doctest::Approx(3 - std::log(sum)));  // whatever the temperature
  }

  TEST_CASE("generation names what it cannot use") {
    const auto model = oracle_model("grt");
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    struct Row {
      std::string says;
      Sampling sampling;
      std::vector<int> prompt = {1, 2};
      std::optional<int> depth = {};
      std::int64_t tokens = 3;
      int samples = 1;
    };
    const Row rows[] = {
        {"--temperature: must be a finite number from 0 on (0 is greedy), not -1", {.temperature = -1}},
        {"--temperature: must be a finite number from 0 on (0 is greedy), not inf", {.temperature = inf}},
        {"--temperature: must be a finite number from 0 on (0 is greedy), not nan", {.temperature = nan}},
        {"--top-k: must be 0 (all tokens) or more, not -1", {.top_k = -1}},
        {"--top-p: must be above 0 and at most 1, not 0", {.top_p = 0}},
        {"--top-p: must be above 0 and at most 1, not 1.5", {.top_p = 1.5}},
        {"--top-p: must be above 0 and at most 1, not nan", {.top_p = nan}},
        {"the prompt is empty", {}, {}},
        {"token 1: id 97 is outside [0, 97), the model's vocabulary", {}, {1, 97}},
        {"token 0: id -1 is outside [0, 97), the model's vocabulary", {}, {-1}},
        {"context_length is 30", {}, std::vector<int>(31, 1), {}, 1},
        {"depth -1", {}, {1}, -1},
        {"--tokens: must be 0..", {}, {1}, {}, -1},
        {"--samples: must be 1..65536, not 0", {}, {1}, {}, 1, 0},
        {"--samples: must be 1..65536, not 65537", {}, {1}, {}, 1, 65537},
    };
    for (const Row& row : rows) {
      CAPTURE(row.says);
      GenerateOptions options;
      options.tokens = row.tokens;
      options.samples = row.samples;
      options.sampling = row.sampling;
      options.decode.depth = row.depth;
      CHECK(contains(error_of([&] { continuation(*model, row.prompt, options); }), row.says));
    }
    for (const std::string name : {"dense", "mor", "rrt"})
      CHECK(contains(error_of([&] { Decoder(*oracle_model(name), {.kv = KvStrategy::mean}, 5); }),
                     "--kv: this " + name + " model keeps all keys and values: full, not mean"));
    CHECK(contains(error_of([&] {
                     score(*model, std::vector<int>{1}, std::vector<int>{2, 97}, {});
                   }),
                   "--score-ids: id 97 is outside [0, 97)"));
  }

  TEST_CASE("weights that are not finite stop a generation and are named") {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const TempDir dir;
      write_spoiled("grt", dir.path, "core.1.mlp.c_fc.weight", bad);
      const auto model = load_model(dir.path, cpu());
      for (const double temperature : {0.0, 1.0}) {
        GenerateOptions options = greedy(3);
        options.sampling.temperature = temperature;
        const std::string error = error_of([&] { continuation(*model, {1, 2}, options); });
        CHECK(contains(error, "core.1.mlp.c_fc.weight"));
        CHECK(contains(error, "nan after 2 tokens"));
      }
    }
  }
}

}  // namespace grt::test
