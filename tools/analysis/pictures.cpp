// Pictures of the whole model: exits, gates, what is injected, how the state moves.
#include "tools/analysis/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/charts.h"

namespace grt {
namespace {

using svg::Picture;
using svg::Point;
using svg::Series;

constexpr const char* kDepth = "depth: times the core was applied";
constexpr const char* kStep = "step";

std::vector<double> joined(std::initializer_list<std::vector<double>> lists) {
  std::vector<double> all;
  for (const std::vector<double>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Series series_of(std::string label, const Json& rows, const char* x, const char* y) {
  Series series{std::move(label), {}};
  for (const Json& row : rows)
    series.points.push_back({number_at(row, x), number_at(row, y), !true_at(row, "trained", true)});
  return series;
}

std::string depth_title(const Json& analysis) {
  return text_at(analysis, "architecture") == "dense" ? "depth: blocks applied" : kDepth;
}

// Where depths above the deepest of training begin, or nowhere.
double beyond_depth(const std::vector<double>& depths, double full_depth) {
  double next = kUnknown;
  for (const double depth : depths)
    if (depth > full_depth && !(depth >= next)) next = depth;
  return (full_depth + next) / 2;
}

Picture by_depth(const Json& analysis, std::string title, const char* key, std::string y_title, bool with_zero) {
  const Json& exits = list_at(analysis, "exits");
  const double full = number_at(analysis, "full_depth");
  const std::vector<double> depths = column(exits, "depth");
  svg::Curves c{std::move(title), svg::whole_axis(depth_title(analysis), depths),
                svg::linear_axis(std::move(y_title), column(exits, key), with_zero)};
  c.series.push_back(series_of("", exits, "depth", key));
  c.beyond = beyond_depth(depths, full);
  c.beyond_label = fmt::format("beyond R = {}", svg::number(full));
  return draw(c);
}

svg::Curves by_step(const Json& steps, std::string title, svg::Axis y) {
  return {std::move(title), svg::whole_axis(kStep, column(steps, "step")), std::move(y)};
}

std::string anchor_name(const std::string& anchor) {
  if (anchor == "prelude") return "the prelude's output (as trained)";
  if (anchor == "state") return "the previous state";
  if (anchor == "embedding") return "the token's embedding";
  if (anchor == "zero") return "zeros";
  return anchor;
}

std::string loss_note(double loss, double learned) {
  if (!std::isfinite(loss - learned)) return svg::fixed(loss, 3);
  return svg::fixed(loss, 3) + "\n" + (loss < learned ? "" : "+") + svg::fixed(loss - learned, 3);
}

}  // namespace

Picture loss_by_depth(const Json& analysis) {
  return by_depth(analysis, "Loss by depth", "loss", "loss (nats per token)", false);
}

Picture kl_by_depth(const Json& analysis) {
  return by_depth(analysis, "How far the prediction is from the final one", "kl_to_final", "KL divergence (nats)",
                  true);
}

Picture loss_saved_by_step(const Json& analysis) {
  svg::Bars b{"Loss saved by each step", kStep, "loss saved (nats per token)", {}, {}};
  const double full = number_at(analysis, "full_depth");
  for (const Json& exit : list_at(analysis, "exits")) {
    const double depth = number_at(exit, "depth"), saved = number_at(exit, "reduction");
    if (depth <= full && std::isfinite(saved))
      b.bars.push_back({svg::number(depth), saved, svg::percent(number_at(exit, "share"))});
  }
  return draw(b);
}

Picture gate_means(const Json& gates) {
  const Json& steps = list_at(gates, "steps");
  Series series = series_of("", steps, "step", "mean");
  for (const Json& step : steps) {
    const double mean = number_at(step, "mean"), deviation = number_at(step, "std");
    series.low.push_back(std::max(0.0, mean - deviation));
    series.high.push_back(std::min(1.0, mean + deviation));
  }
  svg::Curves c = by_step(steps, "The gate at each step: mean and spread",
                          svg::linear_axis("gate: share of the old state that is kept",
                                           joined({column(steps, "mean"), series.low, series.high})));
  c.series.push_back(std::move(series));
  return draw(c);
}

Picture gate_openness(const Json& gates) {
  const Json& steps = list_at(gates, "steps");
  svg::Curves c =
      by_step(steps, "Openness: how much of the proposal gets in",
              svg::percent_axis("openness", joined({column(steps, "openness"), column(steps, "effective_openness")})));
  c.series.push_back(series_of("mean of 1 − gate", steps, "step", "openness"));
  c.series.push_back(series_of("size of the update / size of the proposal", steps, "step", "effective_openness"));
  return draw(c);
}

Picture gate_extremes(const Json& gates) {
  const Json& steps = list_at(gates, "steps");
  svg::Curves c = by_step(
      steps, "Gates that are nearly shut or wide open",
      svg::percent_axis("share of all gates", joined({column(steps, "above_0.95"), column(steps, "below_0.05")})));
  c.series.push_back(series_of("above 0.95: keeps the state", steps, "step", "above_0.95"));
  c.series.push_back(series_of("below 0.05: overwrites it", steps, "step", "below_0.05"));
  return draw(c);
}

Picture gate_histograms(const Json& gates) {
  svg::Histograms h{"All gate values at each step", "gate: 0 takes the proposal, 1 keeps the state", 0, 1};
  for (const Json& step : list_at(gates, "steps"))
    h.charts.push_back({"step " + svg::number(number_at(step, "step")), numbers_of(list_at(step, "histogram"))});
  return draw(h);
}

Picture forced_gates(const Json& gates) {
  const double learned = number_at(gates, "learned_loss");
  svg::Bars b{"Loss when every gate is forced to one value",
              "gate (1: the state never changes)",
              "loss (nats per token)",
              {},
              {}};
  for (const Json& forced : list_at(gates, "forced")) {
    const double loss = number_at(forced, "loss");
    b.bars.push_back({svg::number(number_at(forced, "gate")), loss, loss_note(loss, learned)});
  }
  if (std::isfinite(learned)) b.levels.push_back({learned, "the learned gate: " + svg::fixed(learned, 3)});
  return draw(b);
}

Picture reinjections(const Json& list) {
  svg::Bars b{
      "Loss with something else as the anchor", "what stands in the anchor's place", "loss (nats per token)", {}, {}};
  double trained = kUnknown;
  for (const Json& row : list)
    if (text_at(row, "anchor") == "prelude") trained = number_at(row, "loss");
  for (const Json& row : list) {
    const double loss = number_at(row, "loss");
    b.bars.push_back({anchor_name(text_at(row, "anchor")), loss, loss_note(loss, trained)});
  }
  return draw(b);
}

Picture norms_by_step(const Json& dynamics) {
  const Json& steps = list_at(dynamics, "steps");
  svg::Curves c =
      by_step(steps, "Sizes (norms) at each step",
              svg::magnitude_axis("mean norm", joined({column(steps, "state_norm"), column(steps, "proposal_norm"),
                                                       column(steps, "update_norm")})));
  c.series.push_back(series_of("new state", steps, "step", "state_norm"));
  c.series.push_back(series_of("proposal", steps, "step", "proposal_norm"));
  c.series.push_back(series_of("update that is applied", steps, "step", "update_norm"));
  return draw(c);
}

Picture cosines_by_step(const Json& dynamics) {
  const Json& steps = list_at(dynamics, "steps");
  svg::Curves c = by_step(
      steps, "Directions (cosines) at each step",
      svg::linear_axis("mean cosine",
                       joined({column(steps, "cos_proposal_state"), column(steps, "cos_new_old"),
                               column(steps, "cos_successive_proposals"), column(steps, "cos_successive_updates")}),
                       true));
  c.series.push_back(series_of("proposal and old state", steps, "step", "cos_proposal_state"));
  c.series.push_back(series_of("new and old state", steps, "step", "cos_new_old"));
  c.series.push_back(series_of("this proposal and the last", steps, "step", "cos_successive_proposals"));
  c.series.push_back(series_of("this update and the last", steps, "step", "cos_successive_updates"));
  return draw(c);
}

Picture gains_by_step(const Json& dynamics) {
  const Json& steps = list_at(dynamics, "steps");
  svg::Curves c = by_step(steps, "Does a step stretch or shrink differences?",
                          svg::magnitude_axis("factor", joined({column(steps, "gain"), column(steps, "ratio"), {1}})));
  c.series.push_back(series_of("gain: the most a step can stretch", steps, "step", "gain"));
  c.series.push_back(series_of("size of this update / of the last", steps, "step", "ratio"));
  c.levels.push_back({1, "neither"});
  return draw(c);
}

Picture movement_kinds(const Json& dynamics) {
  svg::Bars b{"Where states end up after many more steps", "kind of movement", "share of tokens (%)", {}, {}};
  for (const Json& row : list_at(dynamics, "classification")) {
    const double share = number_at(row, "share");
    b.bars.push_back({text_at(row, "kind"), 100 * share, svg::percent(share)});
  }
  return draw(b);
}

}  // namespace grt
