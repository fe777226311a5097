// Rules by which a token stops before full depth in decoding: the models' own, and the flag that names them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/model.h"

namespace grt {

struct ExitRule {
  HaltKind kind;
  double threshold;
};

ExitRule exit_rule(const std::string& text);  // "kl:x", "gate:x" or "prob:x"; throws Error naming --exit
std::string text_of(const ExitRule& rule);    // from which exit_rule() makes it again
void check_exit(const LanguageModel& model, const ExitRule& rule);  // does the model have what the rule looks at?

// What a rule looks at, step after step of one pass.
class ExitMeter {
 public:
  ExitMeter(const LanguageModel& model, HaltKind kind);
  ExitMeter(const ExitMeter&) = delete;
  ExitMeter& operator=(const ExitMeter&) = delete;

  bool sees_exits() const { return kind_ != HaltKind::gate; }
  const Look* look() const { return &look_; }  // for the pass
  // After a step, called for each in turn; of each row under way, with z of its exit if sees_exits. kl: the divergence
  // KL(p_{r-1} || p_r) of the exits' distributions, infinite at the first; gate: the mean over features of 1 - g; prob:
  // the probability of having stopped at this exit or before.
  std::vector<double> read(const Tensor& z);
  void keep(std::span<const std::int32_t> rows);  // goes on with these rows alone

 private:
  std::vector<double> divergences(const Tensor& z);
  std::vector<double> openness() const;
  std::vector<double> stopped(std::size_t rows);

  const LanguageModel& model_;
  HaltKind kind_;
  Look look_;
  Tensor shown_;            // what the pass computed last: the gate's or the exit gate's logit
  double temperature_ = 1;  // of the gate
  std::vector<std::vector<double>>
      now_;  // of each row under way: kl: the last exit's log-probabilities; prob: that of going on
};

// A rule at work in one pass: kl stops a token after step r >= 2 when the divergence is below the threshold (Geiping et
// al. 2025), gate when the openness is; prob when the probability reaches it, and never where it is 1 (Zhu et al.
// 2025).
class Halt {
 public:
  Halt(const LanguageModel& model, const ExitRule& rule);
  void enter(Pass& pass);                                     // which must not outlive this
  const std::vector<int>& depths() const { return depths_; }  // that each row of the pass stopped at

 private:
  bool stops(double value) const;

  ExitRule rule_;
  ExitMeter meter_;
  std::vector<int> depths_;
  Halting halting_;
};

}  // namespace grt
