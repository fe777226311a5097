// Self-speculative decoding: a model drafts tokens at a shallow exit of its own, and one pass at full depth says which
// of them stand. The text is that of plain decoding: token for token where it is greedy, in distribution where it is
// sampled. Source: Leviathan et al. 2023, arXiv:2211.17192.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/decoder.h"
#include "train/sampling.h"

namespace grt {

struct Speculation {
  std::optional<int> tokens, depth;  // drafted before each verification, and at which exit; none: chosen
};

// "auto", "k", "k:r" or "auto:r"; throws Error naming --speculate.
Speculation speculation(const std::string& text);
void check_speculation(const LanguageModel& model, const Speculation& speculation, const DecodeOptions& options);

struct SpeculationStats {
  std::int64_t passes = 0;              // verifications, of one sequence each, with drafts or without
  std::int64_t drafted = 0, taken = 0;  // tokens
  std::map<int, std::int64_t> depths;   // of how many drafts each was the depth
};

// How many tokens a round brings if each draft is taken with probability `share` once those before it are: the drafts
// up to the first that is not, and the one that the verification gives.
double expected_tokens(double share, int drafts);

// Where a choice is left open, each round takes the depth r and the k <= kMostDrafts that maximize
//   expected_tokens(a_r, k) / (1 + k (c_r + kRowCost) + floor(k / kTokensAsAlone) kRunCost),
// with c_r the FLOPs of a token at depth r over those at full depth; k = 0 is plain decoding. a_r, the share of drafts
// at r that are taken, is what the drafts judged so far say, of which those kMemory drafts or rounds old are forgotten,
// and kTrust drafts that were taken: so a depth is tried until it disappoints, and again in time. At most kTrust drafts
// more are made than were judged at a depth. Nothing is timed, so that a seed gives the same text again, and each
// sequence has its own r and k, so that others do not change it.
class Speculator {
 public:
  static constexpr int kMostDrafts = 7, kTrust = 4, kMemory = 64;
  // Over a pass of one token, as measured with grt-nano on a CPU: a draft apart from its FLOPs together with another
  // token in the verification, and another run of kTokensAsAlone tokens there.
  static constexpr double kRowCost = 0.3, kRunCost = 0.6;

  Speculator(const LanguageModel& model, const Speculation& speculation, const Sampling& sampling, Decoder& decoder);

  struct Growth {
    std::int64_t sequence;
    int sample, last;       // the newest token, which the decoder has not been fed
    std::int64_t position;  // tokens before the next one
    std::int64_t most;      // new tokens wanted, at least 1
  };
  // For each, one token or more.
  std::vector<std::vector<NewToken>> advance(std::span<const Growth> all);

  const SpeculationStats& stats() const { return stats_; }

 private:
  struct Share {
    double sum = 0, count = 0;
    void forget() {
      sum -= sum / kMemory;
      count -= count / kMemory;
    }
    void add(double taken) {
      forget();
      sum += taken;
      ++count;
    }
    double value() const { return (sum + kTrust) / (count + kTrust); }
  };
  using Shares = std::map<int, Share>;  // by depth
  struct Choice {
    int depth, tokens;
  };
  // Drafted for one sequence, and the distributions they come from.
  struct Draft {
    const Growth* growth;
    Share* share;
    int depth, wanted;
    std::vector<int> ids = {};
    std::vector<std::vector<double>> distributions = {};
  };

  Choice plan(Shares& shares, int most) const;  // up to so many drafts
  void draft(std::vector<Draft>& drafts);
  std::vector<std::vector<NewToken>> verify(std::vector<Draft>& drafts);
  std::vector<NewToken> judge(Draft& draft, std::span<const double> logits);

  const LanguageModel& model_;
  Speculation speculation_;
  Sampling sampling_;
  Decoder& decoder_;
  std::vector<int> candidates_;            // depths
  std::map<int, double> costs_;            // c_r
  std::map<std::int64_t, Shares> shares_;  // by sequence
  SpeculationStats stats_;
};

}  // namespace grt
