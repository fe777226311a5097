// Deterministic evaluation: the mean loss over a whole split, at any number of depths in one pass over the data.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/comm.h"
#include "models/model.h"
#include "train/data.h"
#include "train/exit_rule.h"

namespace grt {

struct EvalOptions {
  std::vector<int> depths = {};           // ascending
  std::int64_t batch_size = 8;            // windows at a time; results do not depend on it
  std::int64_t stride = 0;                // 0: windows do not overlap; else a window every `stride` tokens, each token
                                          // scored once, in the window that gives it the longest context
  std::int64_t most_batches = 0;          // stop after so many batches; 0: the whole split
  std::optional<float> forced_gate = {};  // grt, analysis
  bool further = false;                   // also the losses that the model reports besides its exits'
  std::uint64_t seed = 1337;              // poisson: of the initial state
  bool causal_routing = false;            // mor (models/model.h)
  KvStrategy kv = KvStrategy::full;       // else token by token, as decode_exits(), and nothing further
  // Besides, tokens that stop by each of these rules, at exit_bound at the latest, one of `depths`: token by token.
  std::vector<ExitRule> exits = {};
  int exit_bound = 0;
  Comm* comm = &alone();  // whose ranks share the work; all call evaluate() and get the same result
  // After each batch: the windows done, of all. False stops early (over ranks: with a result that means nothing).
  std::function<bool(std::int64_t done, std::int64_t all)> progress = {};
};

struct DepthLoss {
  double mean = 0;            // nats per predicted token
  double standard_error = 0;  // of the mean, over windows; NaN where there is but one
};

// Of tokens that stop by a rule.
struct ExitResult {
  DepthLoss loss;
  std::map<int, double> depths;  // the share of the predicting tokens that stopped at each
  double mean_depth = 0;
  double agreement = 0;          // share of them after which the likeliest token is that of exit_bound
  std::int64_t substituted = 0;  // keys and values of steps not taken, copied from an earlier step
};

struct EvalResult {
  std::map<int, DepthLoss> by_depth;
  std::map<std::string, DepthLoss> further;  // by the model's name for it
  // With causal routing: the share of the predicting tokens that took so many steps, by their number; and the mean
  // entropy of a router's decision, in nats (ln 2: it could not tell).
  std::map<int, double> depth_histogram;
  std::optional<double> router_entropy;
  std::vector<ExitResult> exits;  // of each rule
  std::int64_t tokens = 0;        // predicted
  std::int64_t windows = 0;
};

// Throws Error naming the flag that asks for what the model cannot do. evaluate() calls it first.
void check_options(const LanguageModel& model, const EvalOptions& options);

// LanguageModel::exits() as they are in decoding from the first token of each sequence on: token by token, each on what
// the cache keeps of those before it. Under `full` the same to rounding.
void decode_exits(const LanguageModel& model, const Tensor& tokens, std::span<const int> depths, const Pass& pass,
                  KvStrategy kv, const LanguageModel::Visit& visit);

// The same for tokens that stop by a rule, at `depth` at the latest.
struct Halted {
  Tensor z;                 // (B, T, d)
  std::vector<int> depths;  // (B T) that each stopped at
  std::int64_t substituted;
};
Halted decode_halting(const LanguageModel& model, const Tensor& tokens, int depth, const Pass& pass, KvStrategy kv,
                      const ExitRule& rule);

void add_routes(Json& record, const EvalResult& result);  // depth_histogram and router_entropy, if there are any

EvalResult evaluate(const LanguageModel& model, const TokenData& data, const EvalOptions& options);

}  // namespace grt
