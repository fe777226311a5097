// Log-likelihoods of requests under a model.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "models/model.h"
#include "tools/eval/requests.h"
#include "train/exit_rule.h"

namespace grt {

struct ScoreOptions {
  std::vector<int> depths = {};           // ascending
  std::int64_t batch_size = 8;            // sequences at a time; no result depends on it
  std::optional<float> forced_gate = {};  // grt, analysis
  std::uint64_t seed = 1337;              // poisson: of the initial state
  // Other than full: each context in one pass, then its continuation one token after another.
  KvStrategy kv = KvStrategy::full;
  std::optional<ExitRule> exit = {};  // in the same way; tokens stop by it, at depths.at(0) at the latest
  // After each batch: the requests done so far, and their tokens.
  std::function<void(std::int64_t requests, std::int64_t tokens)> progress = {};
};

struct Score {
  double log_likelihood = 0;  // of the whole continuation, in nats
  bool greedy = true;         // would greedy decoding give the continuation?
  std::int64_t steps = 0;     // with an exit rule: of the tokens that predict the continuation, together
};

// Of each request, at each depth. Throws Error where a log-likelihood is not finite.
std::vector<std::vector<Score>> score_requests(const LanguageModel& model, std::span<const Request> requests,
                                               const ScoreOptions& options);

}  // namespace grt
