// Chapters on the whole model: exits, gates, what is injected, how the state moves.
#include "tools/analysis/sections.h"

#include <fmt/format.h>

#include <cmath>

#include "tools/analysis/json_fields.h"
#include "tools/analysis/pictures.h"

namespace grt {
namespace {

using html::figure;
using svg::fixed;
using svg::number;
using svg::percent;

std::string exits_table(const Json& analysis) {
  html::Table t{
      {"depth", "loss", "perplexity", "KL to the final", "loss saved", "share of the whole", "MFLOPs per token"},
      {},
      "All exits. A depth in brackets was not used in training."};
  for (const Json& exit : list_at(analysis, "exits")) {
    const double loss = number_at(exit, "loss");
    const std::string depth = number(number_at(exit, "depth"));
    t.rows.push_back({{true_at(exit, "trained", true) ? depth : "(" + depth + ")", "word"},
                      {fixed(loss, 4)},
                      {fixed(std::exp(loss), 2)},
                      {fixed(number_at(exit, "kl_to_final"), 4)},
                      {fixed(number_at(exit, "reduction"), 4)},
                      {percent(number_at(exit, "share"))},
                      {fixed(number_at(exit, "flops_per_token") / 1e6, 2)}});
  }
  return html::table(t);
}

std::string dynamics_table(const Json& dynamics) {
  html::Table t{
      {"step", "norm of the new state", "norm of the proposal", "norm of the update", "cos(proposal, old state)",
       "cos(new, old state)", "cos of proposals", "cos of updates", "gain", "update / last"},
      {},
      "The same in numbers, means over all tokens."};
  for (const Json& step : list_at(dynamics, "steps")) {
    std::vector<html::Cell> row{{number(number_at(step, "step")), "word"}};
    for (const char* key : {"state_norm", "proposal_norm", "update_norm", "cos_proposal_state", "cos_new_old",
                            "cos_successive_proposals", "cos_successive_updates", "gain", "ratio"})
      row.push_back({fixed(number_at(step, key), 3)});
    t.rows.push_back(std::move(row));
  }
  return html::table(t);
}

}  // namespace

std::string printed(const Json& analysis, const std::string& figures) {
  return text_at(analysis, "architecture") == "grt" ? " The paper prints " + figures + ", for GRT Large." : "";
}

std::string exits_section(const Json& analysis) {
  if (list_at(analysis, "exits").empty()) return {};
  const bool dense = text_at(analysis, "architecture") == "dense";
  const std::string stop =
      dense ? "The prediction is read off after every block. " : "The model may stop at any depth. ";
  return figure(
             {loss_by_depth(analysis), kl_by_depth(analysis)},
             stop +
                 "First the loss, the mean surprise at the true next token in nats (lower is better); beside it how "
                 "much the prediction still differs from the one at full depth (0: not at all). Hollow marks are "
                 "depths that training never used; the shaded part lies beyond the full depth R." +
                 printed(
                     analysis,
                     "losses of 5.29 at depth 0, 3.77 after one step, 3.14 after two and 2.68 after six (its R), then "
                     "2.69 at 8, 2.72 at 10 and 2.74 at 12, and a KL divergence of 2.61 at depth 0, 0.46 after two "
                     "steps "
                     "and 0.014 after five")) +
         figure({loss_saved_by_step(analysis)},
                "How much of the loss each step takes away, and its share of what all steps up to R take away "
                "together. A bar below zero: the step makes the prediction worse." +
                    printed(analysis, "77 % for the first two steps together (the losses it prints give 82 %)")) +
         exits_table(analysis);
}

std::string gates_section(const Json& analysis) {
  const Json& gates = field(analysis, "gates");
  std::string out;
  if (!list_at(gates, "steps").empty()) {
    out += figure(
        {gate_means(gates), gate_openness(gates)},
        "For every token and every number of its state a gate between 0 and 1 says how much of the old value is kept. "
        "First "
        "its mean and spread (one standard deviation each way) at each step, then how open it is, measured twice: as "
        "the mean of 1 − gate, and "
        "as the size of the change that is applied beside the size of what was proposed." +
            printed(analysis,
                    "a mean gate of about 0.82 at steps 2 and 3 and 0.87 at step 6, and an openness (the second kind) "
                    "that falls at every step from 0.182 to 0.066"));
    out += figure(
        {gate_extremes(gates)},
        "Gates close to the ends of their range." +
            printed(analysis,
                    "19.7 % above 0.95 at the first step and 28.8 % at the last, and less than 0.01 % below 0.05"));
    out += figure(
        {gate_histograms(gates)},
        "The same gates in full: each small chart is one step, each bar one twentieth of the range from 0 to 1.");
  }
  if (!list_at(gates, "forced").empty())
    out += figure(
        {forced_gates(gates)},
        "The learned gate is replaced by one constant everywhere. At 1 nothing ever changes and the steps are without "
        "effect; at 0 every step overwrites the state. The second number is the difference from the learned gate." +
            printed(analysis, "5.26 for gate 1, 12.03 for gate 0 and 2.68 for the learned gate"));
  return out;
}

std::string reinjection_section(const Json& analysis) {
  const Json& list = list_at(analysis, "reinjection");
  if (list.empty()) return {};
  return figure(
      {reinjections(list)},
      "Every step sees the anchor, the prelude's output, again. Here the trained model is given something else in its "
      "place, without new training; the second number is the difference it makes." +
          printed(analysis,
                  "2.68 with the prelude's output, 3.38 with the previous state, 3.73 with the token's "
                  "embedding and 8.08 with zeros"));
}

std::string dynamics_section(const Json& analysis) {
  const Json& dynamics = field(analysis, "dynamics");
  std::string out;
  if (!list_at(dynamics, "steps").empty()) {
    out += figure(
        {norms_by_step(dynamics), cosines_by_step(dynamics)},
        "How long the vectors are, and how far they point the same way (1: the same direction, 0: "
        "unrelated, −1: opposite)." +
            printed(analysis,
                    "proposals of nearly constant norm, 93 to 99, and applied updates that shrink from 17.6 to 6.5"));
    out += figure({gains_by_step(dynamics)},
                  "The gain is the largest factor by which a step can stretch a small change of its state; below 1 "
                  "every small difference shrinks. The other curve compares each update with the one "
                  "before it: below 1 the changes become smaller.");
    out += dynamics_table(dynamics);
  }
  if (!list_at(dynamics, "classification").empty()) {
    const double steps = number_at(dynamics, "extended_steps");
    out += figure(
        {movement_kinds(dynamics)},
        fmt::format("The core is applied {}and each token's state is watched. Fixed point: it comes to rest. Orbit: it "
                    "returns to where it was. Slider: it drifts on in one direction.",
                    std::isfinite(steps) ? number(steps) + " times " : "many times "));
  }
  return out;
}

}  // namespace grt
