// Sequences of different lengths side by side, and several tokens at a time.
#include "train/decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/train/oracle_models.h"
#include "train/generate.h"

namespace grt::test {
namespace {

using Prompts = std::vector<std::vector<int>>;

std::vector<int> some_ids(std::uint32_t site, std::int64_t n) {
  std::vector<int> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int>(random_below({5, 0, site}, i, 97)));
  return ids;
}

Prompts some_prompts(std::initializer_list<std::int64_t> lengths) {
  Prompts prompts;
  for (const std::int64_t n : lengths) prompts.push_back(some_ids(static_cast<std::uint32_t>(prompts.size()), n));
  return prompts;
}

std::vector<KvStrategy> strategies(const LanguageModel& model) {
  if (!model.reduces_kv()) return {KvStrategy::full};
  return {KvStrategy::full, KvStrategy::mean, KvStrategy::last, KvStrategy::first};
}

// Of a model over 97 ids.
std::vector<double> row(const std::vector<double>& logits, std::size_t i) {
  return {logits.begin() + static_cast<std::ptrdiff_t>(97 * i),
          logits.begin() + static_cast<std::ptrdiff_t>(97 * i + 97)};
}

// What each continuation is, ids and log-probabilities.
std::vector<std::vector<std::pair<int, double>>> continuations(const LanguageModel& model, const Prompts& prompts,
                                                               const GenerateOptions& options) {
  std::vector<std::vector<std::pair<int, double>>> all(prompts.size() * options.samples);
  generate(model, prompts, options,
           [&](int sample, const NewToken& token) { all[sample].emplace_back(token.id, token.logprob); });
  return all;
}

const std::vector<std::string> kModels = {"dense", "grt", "grt_no_prelude", "poisson", "mor", "rrt", "ouro"};

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("prompts of different lengths side by side are continued as each is alone, bit for bit") {
    for (const std::string& name : kModels) {
      const auto model = oracle_model(name);
      for (const KvStrategy kv : strategies(*model)) {
        CAPTURE(name);
        CAPTURE(name_of(kv));
        const Prompts prompts = some_prompts({1, 7, 3, 7, 2});
        Decoder all(*model, {.kv = kv}, 13);
        std::vector<double> logits = all.start(prompts);
        std::vector<Decoder> alone;
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          alone.emplace_back(*model, DecodeOptions{.kv = kv}, 13);
          CHECK(row(logits, i) == alone[i].start(prompts[i]));
        }
        for (int t = 0; t < 6; ++t) {
          const std::vector<int> ids = some_ids(100 + t, 5);
          logits = all.next(ids);
          for (std::size_t i = 0; i < prompts.size(); ++i)
            CHECK(row(logits, i) == alone[i].next(std::vector<int>{ids[i]}));
        }
      }
    }
  }

  TEST_CASE("a sequence that does not go on leaves the others as they are, and can go on later") {
    for (const std::string& name : kModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      Decoder some(*model, {}, 10), all(*model, {}, 10);
      const Prompts prompts = some_prompts({2, 4, 1});
      CHECK(some.start(prompts) == all.start(prompts));
      const std::vector<double> both = some.next(std::vector<std::int64_t>{0, 2}, std::vector<int>{5, 7});
      const std::vector<double> late = some.next(std::vector<std::int64_t>{1}, std::vector<int>{6});
      const std::vector<double> expected = all.next(std::vector<int>{5, 6, 7});
      CHECK(row(both, 0) == row(expected, 0));
      CHECK(row(both, 1) == row(expected, 2));
      CHECK(late == row(expected, 1));
      CHECK(some.next(std::vector<int>{8, 9, 10}) == all.next(std::vector<int>{8, 9, 10}));
    }
  }

  TEST_CASE("continuations of several prompts are those of each alone, sampled, ended and slid") {
    for (const std::string& name : kModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      GenerateOptions options;
      options.tokens = 40;  // above every context
      options.samples = 2;
      options.sampling.temperature = 1.3;
      options.decode.slide = true;
      options.stop_id = 11;
      const Prompts prompts = some_prompts({3, 12, 1, 5});
      const auto all = continuations(*model, prompts, options);
      std::size_t shortest = 40;
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto alone = continuations(*model, {prompts[p]}, options);
        for (std::size_t i = 0; i < 2; ++i) {
          CHECK(all[2 * p + i] == alone[i]);
          shortest = std::min(shortest, alone[i].size());
        }
        CHECK(alone[0] != alone[1]);
      }
      CHECK(shortest < 40);
    }
  }

  TEST_CASE("the longest prompt sets the room that is needed") {
    const auto model = oracle_model("grt");  // 30 positions
    GenerateOptions options;
    options.tokens = 10;
    const auto run = [&](std::initializer_list<std::int64_t> lengths) {
      return error_of([&] { continuations(*model, some_prompts(lengths), options); });
    };
    CHECK(continuations(*model, some_prompts({3, 21}), options)[1].size() == 10);
    CHECK(contains(run({3, 22}), "take 31 tokens of context, but the model's context_length is 30"));
    CHECK(contains(run({3, 0}), "the prompt is empty"));
    CHECK(contains(run({}), "no prompt is given"));
  }

  TEST_CASE("several tokens at a time have the bits of one by one, at every depth, and can be taken back") {
    for (const std::string& name : kModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const int full = model->depths().full;
      const Prompts prompts = some_prompts({2, 5});
      Decoder several(*model, {}, 15), single(*model, {}, 15);
      several.start(prompts);
      single.start(prompts);
      // At a shallower depth first, and taken back: nothing of it may stay.
      const std::vector<int> shallow = {model->depths().lowest};
      several.feed(std::vector<Decoder::Feed>{{1, some_ids(7, 6)}, {0, some_ids(8, 3)}}, shallow);
      several.take_back(1, 6);
      several.take_back(0, 3);
      const std::vector<int> first = some_ids(9, 7), second = some_ids(10, 7), depths = {model->depths().lowest, full};
      const auto both = several.feed(std::vector<Decoder::Feed>{{0, first}, {1, second}}, depths);
      for (std::size_t t = 0; t < 7; ++t) {
        const std::vector<double> expected = single.next(std::vector<int>{first[t], second[t]});
        CHECK(row(both[1], t) == row(expected, 0));
        CHECK(row(both[1], 7 + t) == row(expected, 1));
      }
      several.take_back(0, 4);
      Decoder fresh(*model, {}, 15);
      std::vector<int> text = prompts[0];
      text.insert(text.end(), first.begin(), first.begin() + 3);
      fresh.start(prompts[0]);
      for (int t = 0; t < 3; ++t) fresh.next(std::vector<int>{first[t]});
      CHECK(several.next(std::vector<std::int64_t>{0}, std::vector<int>{1}) == fresh.next(std::vector<int>{1}));
      CHECK(several.room(0) == 15 - 6);
      CHECK(contains(error_of([&] {
                       several.feed(std::vector<Decoder::Feed>{{0, some_ids(1, 10)}}, depths);
                     }),
                     "no room for 10 tokens"));
    }
  }

  // A value that was never written would show: the memory begins as NaN.
  TEST_CASE("a token deeper than those before it sees their keys and values of the last step they took") {
    for (const std::string name : {"grt", "poisson", "rrt", "ouro"}) {
      const auto model = oracle_model(name, DType::f64);
      for (const KvStrategy kv : strategies(*model)) {
        CAPTURE(name);
        CAPTURE(name_of(kv));
        const int full = model->depths().full;
        const KvLayout layout = model->kv_layout(full);
        KvCache cache = model->make_cache(1, 6, full, kv);
        for (int i = 0; i < layout.applications(); ++i)
          for (const Tensor& t : {cache.slot(i).keys, cache.slot(i).values})
            std::fill_n(t.data<double>(), t.numel(), std::numeric_limits<double>::quiet_NaN());
        const auto feed = [&](int site, std::int64_t n, int depth) {
          const std::vector<int> ids = some_ids(site, n);
          const std::vector<std::int32_t> narrow(ids.begin(), ids.end());
          return values(
              model->hidden(Tensor::from<std::int32_t>({1, n}, narrow, cpu()), depth, {.cache = &cache}).value());
        };
        feed(1, 3, 2);
        CHECK(cache.substituted() == 3 * (full - 2));
        const std::vector<double> z = feed(2, 3, full);
        CHECK(std::all_of(z.begin(), z.end(), [](double x) { return std::isfinite(x); }));
        if (kv != KvStrategy::full) continue;
        const Shape one{3, layout.core > 0 ? cache.slot(0).keys.dim(3) : 0};
        for (int step = 2; step < full; ++step)
          for (int layer = 0; layer < layout.core; ++layer) {
            const auto at = [&](int s) { return cache.slot(layout.before + s * layout.core + layer).values; };
            CHECK(same_bits(at(step).range(0, one), at(1).range(0, one)));
            CHECK(!same_bits(at(step).range(3 * one[1], one), at(1).range(3 * one[1], one)));
          }
      }
    }
  }
}

}  // namespace grt::test
