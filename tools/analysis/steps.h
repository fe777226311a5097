// What happens to the state in each step of a pass (each block of dense): the proposal, the gate, the applied update.
// A look at the pass (Pass::look) feeds it.
#pragma once

#include <string_view>
#include <vector>

#include "core/json.h"
#include "models/model.h"
#include "tools/analysis/statistics.h"

namespace grt {

class StepTally {
 public:
  explicit StepTally(const LanguageModel& model);

  void see(std::string_view what, int step, const Tensor& value);  // of steps up to full depth

  bool gated() const { return gated_; }
  Json gates() const;     // "steps" of "gates"
  Json dynamics() const;  // "steps" of "dynamics", without what needs another pass
  double initial_norm() const { return initial_norm_.value(); }
  // Of the gate's mean over features and the tokens' difficulty, by step.
  Json gate_correlations(std::span<const double> difficulty) const;

 private:
  struct Step {
    Mean state_norm, proposal_norm, admitted_norm, update_norm;
    Mean proposal_and_state, new_and_old, successive_proposals, successive_updates;
    Mean gate, above, below;
    Histogram histogram{0, 1, 20};
    std::vector<double> gate_means;  // of each token
  };
  using Rows = std::vector<double>;  // (tokens of a batch, d)

  void begin(Rows state);
  void update(Step& step, Rows state);
  void add_gates(Step& step);

  bool gated_;
  int full_;
  std::size_t width_;
  double tau_;
  Mean initial_norm_;
  std::vector<Step> steps_;
  // Of the batch at hand; empty: none yet.
  Rows state_, proposal_, previous_proposal_, previous_update_, gate_;
};

}  // namespace grt
