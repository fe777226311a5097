// Text from a model: the distribution of the next token after a growing context, and how one is chosen from it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "models/model.h"

namespace grt {

struct Sampling {
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 1337;

  template <class V>
  void fields(V&& v) {
    v("temperature", temperature, "divides the logits; 0: always the likeliest token");
    v("top-k", top_k, "choose among so many of the likeliest tokens; 0: all");
    v("top-p", top_p, "choose among the likeliest tokens that make up this share of the probability; 1: all");
    v("seed", seed, "of the random choices, and of a poisson model's initial state");
  }
};

struct NewToken {
  int id;
  double logprob;  // nats, of the model's own distribution: temperature and the like have no part in it
};

// One of the ids [0, logits.size()). The random number is a function of (seed, sample, position), where position counts
// the tokens before the new one. Equal logits: the lower id is the likelier. `logits` must be finite.
NewToken choose(std::span<const double> logits, const Sampling& sampling, int sample, std::int64_t position);

struct DecodeOptions {
  std::optional<int> depth = {};  // none: full depth
  bool slide = false;             // a context above the model's: drop its oldest half; off: an error
  bool cached = true;             // keep keys and values of earlier tokens; off: compute all of them anew each time
  std::uint64_t seed = 1337;      // poisson: of the initial state
  // What the cache keeps. Whatever it is, a prompt, and a context computed anew, is exact.
  KvStrategy kv = KvStrategy::full;
  bool count_steps = false;  // keep how many steps each token takes
};

// Sequences that grow side by side from one prompt. What it returns: the logits of the next token, (sequences,
// vocab_size). Throws Error for ids outside the vocabulary, and for logits that are not finite.
class Decoder {
 public:
  // `most_tokens`: a bound on the tokens that will be fed, which limits the cache.
  Decoder(const LanguageModel& model, const DecodeOptions& options, std::int64_t most_tokens);

  std::vector<double> start(std::span<const int> prompt);  // one sequence
  void fork(int sequences);                                // makes the one sequence so many
  std::vector<double> next(std::span<const int> ids);      // one id for each sequence
  std::int64_t cache_bytes() const;
  // With count_steps, for each sequence: the steps of each token fed, from the first of the prompt on.
  const std::vector<std::vector<int>>& steps() const { return steps_; }

 private:
  std::vector<double> feed_last(std::int64_t count);
  std::vector<double> logits_of(const Tensor& z) const;
  void check_finite(std::span<const double> logits) const;
  void check_id(int id, std::int64_t position) const;
  bool drop_oldest();
  void keep_steps(const std::vector<int>& fed, std::int64_t count);

  const LanguageModel& model_;
  DecodeOptions options_;
  int depth_;
  std::int64_t context_, capacity_, dropped_ = 0;
  std::vector<std::vector<int>> windows_;  // the tokens each sequence sees, all equally many
  std::vector<std::vector<int>> steps_;
  std::optional<KvCache> cache_;
};

struct GenerateOptions {
  std::int64_t tokens = 0;  // for each sample
  int samples = 1;          // continuations, of which each is the same however many there are
  Sampling sampling = {};
  DecodeOptions decode = {};
  std::optional<int> stop_id = {};  // ends a sample, and is no part of it
};

void check_generation(const GenerateOptions& options);  // throws Error naming the flag

struct GenerateStats {
  std::int64_t prompt_tokens = 0, new_tokens = 0, cache_bytes = 0;
  double prompt_seconds = 0, seconds = 0;  // for the prompt, for the new tokens after it
  // With count_steps, for each sample: the steps of each token of the prompt and of each new one but the last, which is
  // chosen and not fed.
  std::vector<std::vector<int>> steps;
};

// Calls on_token for each token as soon as it is chosen, sample by sample at each position.
using OnToken = std::function<void(int sample, const NewToken& token)>;
GenerateStats generate(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options,
                       const OnToken& on_token);

// The log-probability of each of `ids` after the prompt and the ids before it, in nats.
std::vector<double> score(const LanguageModel& model, std::span<const int> prompt, std::span<const int> ids,
                          const DecodeOptions& options);

}  // namespace grt
