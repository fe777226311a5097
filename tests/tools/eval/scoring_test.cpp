// Log-likelihoods of requests: the reference's, and the same however they are batched.
#include "tools/eval/scoring.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/train/oracle_models.h"
#include "train/generate.h"

namespace grt::test {
namespace {

// Documents of one to four choices after a common context; the first two choices of some differ in the last id alone,
// some contexts differ, some are too long for the model.
std::vector<Request> some_requests(std::int64_t documents, std::int64_t context_length, int vocab) {
  std::uint64_t draws = 0;
  const auto below = [&](std::uint32_t n) { return static_cast<int>(random_below({3, 0, 9}, draws++, n)); };
  const auto ids = [&](int count) {
    std::vector<int> list;
    for (int i = 0; i < count; ++i) list.push_back(below(static_cast<std::uint32_t>(vocab)));
    return list;
  };
  std::vector<Request> requests;
  for (std::int64_t d = 0; d < documents; ++d) {
    std::vector<int> context = ids(1 + below(static_cast<std::uint32_t>(context_length)));
    const int choices = 1 + below(4);
    for (int c = 0; c < choices; ++c) {
      std::vector<int> continuation = ids(1 + below(6));
      if (c == 1 && d % 3 == 0) {
        continuation = requests.back().continuation;
        continuation.back() = below(static_cast<std::uint32_t>(vocab));
      }
      if (d % 5 == 0) context.back() = below(static_cast<std::uint32_t>(vocab));
      requests.push_back({d, context, continuation});
    }
  }
  return requests;
}

using Scores = std::vector<std::vector<Score>>;

// The requests as given, in another order of their documents, put back.
Scores score_in_disorder(const LanguageModel& model, const std::vector<Request>& requests,
                         const ScoreOptions& options) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return 7 * requests[a].document % 11 < 7 * requests[b].document % 11;
  });
  std::vector<Request> mixed;
  for (const std::size_t i : order) mixed.push_back(requests[i]);
  const Scores scores = score_requests(model, mixed, options);
  Scores back(scores.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = scores[i];
  return back;
}

bool same(const Scores& a, const Scores& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const Score& s, const Score& t) {
      return s.log_likelihood == t.log_likelihood && s.greedy == t.greedy && s.steps == t.steps;
    });
  });
}

// The largest difference of log-likelihoods at `depth_of_a` and the last depth of b; greedy flags must agree.
double difference(const Scores& a, std::size_t depth_of_a, const Scores& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i][depth_of_a].greedy == b[i].back().greedy);
    largest = std::max(largest, std::abs(a[i][depth_of_a].log_likelihood - b[i].back().log_likelihood));
  }
  return largest;
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("the log-likelihood of a continuation is the reference's, also where choices share the context") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["score"];
      const auto model = oracle_model(name);
      const std::vector<int> context = expected["context"], ids = expected["continuation"];
      const std::vector<Request> requests = {{0, context, {1}}, {0, context, ids}, {0, context, {3, 4, 5}}};
      const double tolerance = kLogitTolerance * static_cast<double>(ids.size());
      for (const char* kv : {"full", "mean", "last", "first"}) {
        if (!expected.contains(kv)) continue;
        CAPTURE(kv);
        const std::vector<double> logprobs = expected[kv];
        const double sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
        const ScoreOptions options{.depths = {expected["depth"]}, .kv = kv_strategy(kv)};
        const auto alone = std::span(requests).subspan(1, 1);
        CHECK(std::abs(score_requests(*model, requests, options)[1][0].log_likelihood - sum) < tolerance);
        CHECK(std::abs(score_requests(*model, alone, options)[0][0].log_likelihood - sum) < tolerance);
      }
    }
  }

  TEST_CASE("scores have the same bits for any batch size and order of the documents") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name);
      const int full = model->depths().full;
      const auto requests =
          some_requests(kSanitized ? 20 : 50, model->config().context_length, model->config().vocab_size);
      for (ScoreOptions options : {ScoreOptions{.depths = {full}}, ScoreOptions{.depths = {1, full}},
                                   ScoreOptions{.depths = {full}, .kv = KvStrategy::mean},
                                   ScoreOptions{.depths = {full}, .kv = KvStrategy::first}}) {
        if (options.kv != KvStrategy::full && !model->reduces_kv()) continue;
        CAPTURE(options.depths.size());
        CAPTURE(name_of(options.kv));
        options.batch_size = 1;
        const Scores one = score_requests(*model, requests, options);
        for (const int batch_size : {7, 32}) {
          CAPTURE(batch_size);
          options.batch_size = batch_size;
          CHECK(same(one, score_requests(*model, requests, options)));
          CHECK(same(one, score_in_disorder(*model, requests, options)));
        }
      }
    }
  }

  TEST_CASE(
      "scores of tokens that stop early are the decoder's, the same in any batch; at the extremes a fixed depth's") {
    struct Row {
      std::string model, rule, never;
    };
    for (const auto& [name, rule, never] : {Row{"grt", "kl:0.05", "kl:0"},
                                            {"grt", "gate:0.29", "gate:0"},
                                            {"poisson", "kl:1.1", "kl:0"},
                                            {"ouro", "prob:0.65", "prob:1"}}) {
      const auto model = oracle_model(name);
      const std::int64_t context_length = model->config().context_length;
      const int full = model->depths().full;
      const auto requests = some_requests(30, context_length, model->config().vocab_size);
      for (const KvStrategy kv : {KvStrategy::full, KvStrategy::last}) {
        CAPTURE(name);
        CAPTURE(rule);
        CAPTURE(name_of(kv));
        ScoreOptions options{.depths = {full}, .batch_size = 1, .kv = kv};
        options.exit = exit_rule(rule);
        const Scores one = score_requests(*model, requests, options);
        for (const int batch_size : {7, 32}) {
          options.batch_size = batch_size;
          CHECK(same(one, score_requests(*model, requests, options)));
          CHECK(same(one, score_in_disorder(*model, requests, options)));
        }
        DecodeOptions decode{.kv = kv};
        decode.exit = options.exit;
        std::int64_t steps = 0, tokens = 0, apart = 0;
        const Scores deep = score_requests(*model, requests, {.depths = {full}, .kv = kv});
        for (std::size_t i = 0; i < requests.size(); ++i) {
          const std::vector<int> input = model_input(requests[i], context_length);
          const std::span<const int> context(input.data(), input.size() - requests[i].continuation.size() + 1);
          double sum = 0;
          for (const double logprob : score(*model, context, requests[i].continuation, decode)) sum += logprob;
          CHECK(one[i][0].log_likelihood == doctest::Approx(sum).epsilon(1e-5));
          steps += one[i][0].steps;
          tokens += static_cast<std::int64_t>(requests[i].continuation.size());
          apart += std::abs(one[i][0].log_likelihood - deep[i][0].log_likelihood) > 1e-5;
        }
        CHECK(steps > tokens);
        CHECK(steps < full * tokens);
        CHECK(apart > 0);
        options.exit = exit_rule(never);
        const Scores at_full = score_requests(*model, requests, options);
        CHECK(difference(at_full, 0, deep) < 2e-4);
        for (std::size_t i = 0; i < requests.size(); ++i)
          CHECK(at_full[i][0].steps == full * static_cast<std::int64_t>(requests[i].continuation.size()));
      }
    }
  }

  TEST_CASE("what choices share gives the same whether it is computed once or with each of them") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      const int full = model->depths().full;
      const auto requests = some_requests(30, model->config().context_length, model->config().vocab_size);
      const Scores shared = score_requests(*model, requests, {.depths = {full}});
      const Scores apart = score_requests(*model, requests, {.depths = {1, full}});
      CHECK(difference(apart, 1, shared) < 1e-11);
      CHECK(difference(apart, 0, score_requests(*model, requests, {.depths = {1}})) < 1e-11);
    }
  }

  TEST_CASE("scores are the decoder's, token by token") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const auto model = oracle_model(name, DType::f64);
      const auto requests = some_requests(20, model->config().context_length, model->config().vocab_size);
      const Scores scores = score_requests(*model, requests, {.depths = {model->depths().full}});
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const std::vector<int> input = model_input(requests[i], model->config().context_length);
        const std::span<const int> context(input.data(), input.size() - requests[i].continuation.size() + 1);
        const std::vector<double> logprobs = score(*model, context, requests[i].continuation, {});
        const double sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
        CHECK(std::abs(scores[i][0].log_likelihood - sum) < 1e-11);
        bool greedy = true;
        Decoder decoder(*model, {}, static_cast<std::int64_t>(input.size()));
        std::vector<double> logits = decoder.start(context);
        for (const int& id : requests[i].continuation) {
          greedy = greedy && choose(logits, {.temperature = 0}, 0, 0).id == id;
          if (&id != &requests[i].continuation.back()) logits = decoder.next(std::span(&id, 1));
        }
        CHECK(scores[i][0].greedy == greedy);
      }
    }
  }

  TEST_CASE("the continuation that greedy decoding gives is greedy, and one with another last id is not") {
    const auto model = oracle_model("grt");
    const Json decode = oracle_values("grt")["decode"];
    const std::vector<int> prompt = decode["prompt"], ids = decode["full"]["tokens"];
    std::vector<int> other = ids;
    other.back() = (other.back() + 1) % 97;
    const Scores scores =
        score_requests(*model, std::vector<Request>{{0, prompt, ids}, {0, prompt, other}}, {.depths = {3}});
    CHECK(scores[0][0].greedy);
    CHECK_FALSE(scores[1][0].greedy);
  }

  TEST_CASE("an id outside the vocabulary and a log-likelihood that is not finite are errors") {
    const auto model = oracle_model("grt");
    const std::vector<Request> outside = {{4, {1}, {97}}}, fine = {{0, {1}, {2}}};
    CHECK(contains(error_of([&] { score_requests(*model, outside, {.depths = {3}}); }),
                   "document 4: id 97 is outside [0, 97)"));
    const TempDir dir;
    write_spoiled("grt", dir / "C", "coda.0.mlp.c_fc.weight", std::nanf(""));
    const auto spoiled = load_model(dir / "C", cpu(), DType::f32);
    CHECK(contains(error_of([&] { score_requests(*spoiled, fine, {.depths = {3}}); }),
                   "a log-likelihood is nan; the first bad weight: coda.0.mlp.c_fc.weight"));
  }
}

}  // namespace grt::test
