// Sequences that grow side by side: the logits of what follows each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/graphs.h"
#include "ops/hold.h"
#include "train/exit_rule.h"

namespace grt {

struct DecodeOptions {
  std::optional<int> depth = {};  // none: full depth
  bool slide = false;             // a context above the model's: drop its oldest half; off: an error
  bool cached = true;             // keep keys and values of earlier tokens; off: compute all of them anew each time
  std::uint64_t seed = 1337;      // poisson: of the initial state
  // What the cache keeps. Whatever it is, a prompt, and a context computed anew, is exact.
  KvStrategy kv = KvStrategy::full;
  bool count_steps = false;           // keep how many steps each token takes
  std::optional<ExitRule> exit = {};  // how a token, of the prompt too, stops before `depth`; none: no token does
};

// While it lives the weights of `model` are rounded to bf16 but once for all decoders, not at every token; null where
// products do not round. It begins before the decoders and outlives them: their graphs read what it keeps.
std::unique_ptr<Hold> hold_rounded(const LanguageModel& model);

// Each sequence has a length of its own, and what comes of it depends neither on the others nor, bit for bit, on their
// number. Logits are (rows, vocab_size). Throws Error for ids outside the vocabulary, and for logits that are not
// finite.
class Decoder {
 public:
  // `most_tokens`: a bound on the tokens that will be fed to a sequence, which limits the cache.
  Decoder(const LanguageModel& model, const DecodeOptions& options, std::int64_t most_tokens);

  // One sequence for each prompt. The logits after each.
  std::vector<double> start(std::span<const std::vector<int>> prompts);
  std::vector<double> start(std::span<const int> prompt);
  void fork(int copies);  // makes each sequence so many, side by side

  // Another token of each sequence, or of those named alone. The logits after it.
  std::vector<double> next(std::span<const int> ids);
  std::vector<double> next(std::span<const std::int64_t> sequences, std::span<const int> ids);

  struct Feed {
    std::int64_t sequence;
    std::vector<int> ids;
  };
  // The logits at each of `depths` (ascending) after each of the tokens, which are the same bit for bit as if they came
  // one by one. With a cache made for full depth, and room for them.
  std::vector<std::vector<double>> feed(std::span<const Feed> feeds, std::span<const int> depths);
  void take_back(std::int64_t sequence, std::int64_t count);  // the newest tokens, which were fed since the last slide
  std::int64_t room(std::int64_t sequence) const;             // tokens until it slides

  int depth() const { return depth_; }
  const std::vector<int>& exit_depths() const { return exit_depths_; }  // of each row that start() or next() gave
  // With count_steps, for each sequence: the steps of each token fed, from the first of the prompt on.
  std::vector<std::vector<int>> steps() const;
  std::int64_t cache_bytes() const { return cache_ ? cache_->bytes() : 0; }
  std::int64_t substituted() const { return cache_ ? cache_->substituted() : 0; }

 private:
  struct Sequence {
    std::vector<int> window;   // the tokens that it sees
    std::int64_t dropped = 0;  // before them
    std::vector<int> steps;    // of each token fed, those dropped as well

    std::int64_t length() const { return dropped + static_cast<std::int64_t>(window.size()); }
  };
  // The newest `count` tokens of a sequence, those before them being in the cache.
  struct Fresh {
    std::int64_t sequence, count;
  };

  Fresh append(const Feed& feed);
  void use(KvCache cache);  // instead of the one before
  std::vector<double> after(std::span<const Fresh> parts);
  bool is_step(std::span<const Fresh> parts) const;
  std::vector<double> step(std::span<const Fresh> parts);
  std::vector<double> run_plain(std::span<const Fresh> parts);
  std::vector<std::int32_t> ids_of(std::span<const Fresh> parts) const;
  Tensor tokens_of(std::span<const Fresh> parts) const;
  Pass pass();
  void keep_steps(std::span<const Fresh> parts, std::span<const int> of_rows);
  std::vector<double> logits_of(const Tensor& z) const;
  void check_finite(std::span<const double> logits, std::span<const Fresh> parts) const;
  void check_finite(std::span<const double> logits, std::int64_t sequence) const;
  void check_id(int id, std::int64_t position) const;
  bool drop_oldest(Sequence& sequence) const;

  const LanguageModel& model_;
  DecodeOptions options_;
  int depth_;
  std::int64_t context_, capacity_;
  std::vector<Sequence> sequences_;
  std::optional<KvCache> cache_;
  std::vector<int> exit_depths_;
  // What step() reads and writes besides the cache, and its graphs: one where all sequences are equally long.
  Tensor step_tokens_, step_logits_;  // (1, N) i32, (N, padded_vocab_size)
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace grt
