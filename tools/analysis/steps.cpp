#include "tools/analysis/steps.h"

#include <cmath>

#include "core/threads.h"
#include "train/host.h"

namespace grt {
namespace {

// f(i) for each of `rows` rows, in parallel; added to the mean in order.
template <class F>
void add_rows(Mean& mean, std::size_t rows, F&& f) {
  std::vector<double> values(rows);
  parallel_for(static_cast<std::int64_t>(rows), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) values[i] = f(static_cast<std::size_t>(i));
  });
  for (const double x : values) mean.add(x);
}

std::vector<double> sigmoids(const std::vector<double>& logits, double tau) {
  std::vector<double> gates(logits.size());
  parallel_for(static_cast<std::int64_t>(logits.size()), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) gates[i] = 1 / (1 + std::exp(-logits[i] / tau));
  });
  return gates;
}

}  // namespace

StepTally::StepTally(const LanguageModel& model)
    : gated_(model.config_json().value("use_gate", false)),
      full_(model.depths().full),
      width_(static_cast<std::size_t>(model.config().d_model)),
      tau_(model.config_json().value("gate_temperature", 1.0)),
      steps_(model.depths().full) {}

void StepTally::see(std::string_view what, int step, const Tensor& value) {
  if (step > full_) return;
  if (what == "embedding" || (what == "state" && step == 0)) begin(host_values(value));
  if (step == 0) return;
  if (what == "proposal") proposal_ = host_values(value);
  if (what == "gate_logit") gate_ = sigmoids(host_values(value), tau_);
  if (what == "state") update(steps_[step - 1], host_values(value));
}

// A pass shows its embedding, where dense begins; for the others the state before the first step then takes its place.
void StepTally::begin(Rows state) {
  state_ = std::move(state);
  previous_proposal_ = previous_update_ = proposal_ = gate_ = {};
}

void StepTally::update(Step& step, Rows state) {
  const std::size_t rows = state.size() / width_;
  const auto row = [this](const Rows& all, std::size_t i) { return std::span(all).subspan(i * width_, width_); };
  const auto norm_of = [&](const Rows& all) { return [&, row](std::size_t i) { return norm(row(all, i)); }; };
  const auto cosine_of = [&](const Rows& a, const Rows& b) {
    return [&, row](std::size_t i) { return cosine(row(a, i), row(b, i)); };
  };
  Rows applied(state.size());
  for (std::size_t i = 0; i < state.size(); ++i) applied[i] = state[i] - state_[i];

  if (&step == &steps_.front()) add_rows(initial_norm_, rows, norm_of(state_));
  add_rows(step.state_norm, rows, norm_of(state));
  add_rows(step.update_norm, rows, norm_of(applied));
  add_rows(step.new_and_old, rows, cosine_of(state, state_));
  if (!previous_update_.empty()) add_rows(step.successive_updates, rows, cosine_of(applied, previous_update_));
  if (!proposal_.empty()) {
    add_rows(step.proposal_norm, rows, norm_of(proposal_));
    add_rows(step.proposal_and_state, rows, cosine_of(proposal_, state_));
    if (!previous_proposal_.empty())
      add_rows(step.successive_proposals, rows, cosine_of(proposal_, previous_proposal_));
  }
  if (!gate_.empty()) add_gates(step);
  state_ = std::move(state);
  previous_update_ = std::move(applied);
  previous_proposal_ = std::move(proposal_);
  proposal_ = gate_ = {};
}

void StepTally::add_gates(Step& step) {
  for (const double g : gate_) {
    step.gate.add(g);
    step.above.add(g > 0.95 ? 1 : 0);
    step.below.add(g < 0.05 ? 1 : 0);
    step.histogram.add(g);
  }
  Rows admitted(gate_.size());
  for (std::size_t i = 0; i < gate_.size(); ++i) admitted[i] = (1 - gate_[i]) * proposal_[i];
  for (std::size_t begin = 0; begin < gate_.size(); begin += width_) {
    step.admitted_norm.add(norm(std::span(admitted).subspan(begin, width_)));
    Mean mean;
    for (const double g : std::span(gate_).subspan(begin, width_)) mean.add(g);
    step.gate_means.push_back(mean.value());
  }
}

Json StepTally::gates() const {
  Json all = Json::array();
  for (const Step& s : steps_)
    all.push_back({{"step", all.size() + 1},
                   {"mean", s.gate.value()},
                   {"std", s.gate.deviation()},
                   {"above_0.95", s.above.value()},
                   {"below_0.05", s.below.value()},
                   {"openness", 1 - s.gate.value()},
                   {"effective_openness", s.update_norm.value() / s.proposal_norm.value()},
                   {"admitted_share", s.admitted_norm.value() / s.proposal_norm.value()},
                   {"histogram", s.histogram.shares()}});
  return all;
}

Json StepTally::dynamics() const {
  Json all = Json::array();
  for (std::size_t r = 0; r < steps_.size(); ++r) {
    const Step& s = steps_[r];
    Json step{{"step", r + 1},
              {"state_norm", s.state_norm.value()},
              {"proposal_norm", s.proposal_norm.value()},
              {"admitted_norm", s.admitted_norm.value()},
              {"update_norm", s.update_norm.value()},
              {"cos_proposal_state", s.proposal_and_state.value()},
              {"cos_new_old", s.new_and_old.value()},
              {"cos_successive_proposals", s.successive_proposals.value()},
              {"cos_successive_updates", s.successive_updates.value()}};
    step["gain"] = nullptr;
    step["ratio"] = r == 0 ? Json(nullptr) : Json(s.update_norm.value() / steps_[r - 1].update_norm.value());
    all.push_back(step);
  }
  return all;
}

Json StepTally::gate_correlations(std::span<const double> difficulty) const {
  Json all = Json::array();
  for (const Step& s : steps_)
    all.push_back({{"step", all.size() + 1}, {"pearson", pearson(s.gate_means, difficulty)}});
  return all;
}

}  // namespace grt
