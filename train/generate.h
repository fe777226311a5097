// Text from a model: prompts that are continued side by side, and the scores of given continuations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "train/decoder.h"
#include "train/sampling.h"
#include "train/speculate.h"

namespace grt {

struct GenerateOptions {
  std::int64_t tokens = 0;  // for each sample
  int samples = 1;          // continuations of each prompt
  Sampling sampling = {};
  DecodeOptions decode = {};
  std::int64_t side_by_side = 0;                // prompts at a time; 0: all
  std::optional<int> stop_id = {};              // ends a sample, and is no part of it
  std::optional<Speculation> speculation = {};  // draft and verify
  bool compare = false;  // with decode.exit: count how often full depth agrees, at the cost of running it too
};

void check_generation(const GenerateOptions& options);  // throws Error naming the flag

struct GenerateStats {
  std::int64_t prompt_tokens = 0, new_tokens = 0, cache_bytes = 0;
  std::int64_t decoded = 0;  // new tokens but the first of each continuation, which the prompt's pass makes
  double prompt_seconds = 0, seconds = 0;   // for the prompts, for the tokens decoded
  std::map<int, std::int64_t> depths = {};  // of how many new tokens each was the exit
  std::optional<double> agreement = {};     // share of new tokens that full depth would have chosen after the same text
  std::int64_t substituted = 0;             // keys and values of steps not taken, copied from an earlier step
  SpeculationStats speculation = {};
  void add(const GenerateStats& other);  // those of further prompts

  // With count_steps, for each continuation: the steps of each token of the prompt and of each new one but the last,
  // which is chosen and not fed.
  std::vector<std::vector<int>> steps = {};
};

// Calls on_token for each token as soon as it is chosen. Continuation `sample` is the (sample % samples)th of prompt
// sample / samples; it is the same however many prompts and samples there are.
using OnToken = std::function<void(int sample, const NewToken& token)>;
GenerateStats generate(const LanguageModel& model, std::span<const std::vector<int>> prompts,
                       const GenerateOptions& options, const OnToken& on_token);
GenerateStats generate(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options,
                       const OnToken& on_token);

// The log-probability of each of `ids` after the prompt and the ids before it, in nats.
std::vector<double> score(const LanguageModel& model, std::span<const int> prompt, std::span<const int> ids,
                          const DecodeOptions& options);

}  // namespace grt
