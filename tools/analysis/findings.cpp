// The sentences at the top of the report, each said only where its numbers are there.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/json_fields.h"
#include "tools/analysis/sections.h"

namespace grt {
namespace {

using svg::fixed;
using svg::number;
using svg::percent;

void say_losses(const Json& analysis, std::vector<std::string>& out) {
  const double full = number_at(analysis, "full_depth");
  const Json* at_full = nullptr;
  const Json* deepest = nullptr;
  double first_steps = 0, depth_of_two = kUnknown;
  int steps = 0;
  for (const Json& exit : list_at(analysis, "exits")) {
    const double depth = number_at(exit, "depth"), share = number_at(exit, "share");
    if (depth == full) at_full = &exit;
    if (depth > full) deepest = &exit;
    if (std::isfinite(share) && depth < full && steps < 2) {
      ++steps;
      first_steps += share;
      depth_of_two = depth;
    }
  }
  if (at_full == nullptr) return;
  const double loss = number_at(*at_full, "loss");
  out.push_back(fmt::format("At full depth (R = {}) the loss is {} nats per token, a perplexity of {}.", number(full),
                            fixed(loss, 3), fixed(std::exp(loss), 2)));
  const double total = number_at(analysis, "total_reduction");
  if (steps == 2 && std::isfinite(total))
    out.push_back(fmt::format("Going from the first exit to full depth saves {} nats; {} of that is saved by depth {}.",
                              fixed(total, 3), percent(first_steps), number(depth_of_two)));
  if (deepest != nullptr && std::isfinite(number_at(*deepest, "loss"))) {
    const double change = number_at(*deepest, "loss") - loss;
    out.push_back(fmt::format("Beyond R, at depth {}, the loss is {} nats {}.", number(number_at(*deepest, "depth")),
                              fixed(std::abs(change), 3), change > 0 ? "higher" : "lower"));
  }
}

void say_gates(const Json& gates, std::vector<std::string>& out) {
  const Json& steps = list_at(gates, "steps");
  if (steps.empty()) return;
  const double first = number_at(steps.front(), "effective_openness"),
               last = number_at(steps.back(), "effective_openness");
  if (std::isfinite(first) && std::isfinite(last))
    out.push_back(fmt::format(
        "The update that the gate lets through is {} of the proposal's size at the first step and {} at the last.",
        percent(first), percent(last)));
}

void say_anchor(const Json& list, std::vector<std::string>& out) {
  double trained = kUnknown, zero = kUnknown;
  for (const Json& row : list) {
    if (text_at(row, "anchor") == "prelude") trained = number_at(row, "loss");
    if (text_at(row, "anchor") == "zero") zero = number_at(row, "loss");
  }
  if (std::isfinite(zero - trained))
    out.push_back(fmt::format("With zeros in the anchor's place the loss is {} instead of {}.", fixed(zero, 3),
                              fixed(trained, 3)));
}

void say_gain(const Json& dynamics, std::vector<std::string>& out) {
  int known = 0, contracting = 0;
  for (const double gain : column(list_at(dynamics, "steps"), "gain"))
    if (std::isfinite(gain)) {
      ++known;
      contracting += gain < 1 ? 1 : 0;
    }
  if (known > 0)
    out.push_back(
        fmt::format("{} of {} steps shrink every small difference between states (gain below 1).", contracting, known));
}

void say_difficulty(const Json& difficulty, std::vector<std::string>& out) {
  const Json& deciles = list_at(difficulty, "deciles");
  if (deciles.size() < 2) return;
  const double easy = number_at(deciles.front(), "improvement"), hard = number_at(deciles.back(), "improvement");
  if (std::isfinite(easy) && std::isfinite(hard))
    out.push_back(
        fmt::format("All steps together save {} nats on the easiest tenth of the tokens and {} on the hardest.",
                    fixed(easy, 3), fixed(hard, 3)));
}

void say_heads(const Json& heads, std::vector<std::string>& out) {
  const Json& list = list_at(heads, "list");
  std::size_t steady = 0;
  for (const Json& head : list) steady += true_at(head, "changes", true) ? 0 : 1;
  if (!list.empty())
    out.push_back(fmt::format("{} of {} attention heads do the same at every step.", steady, list.size()));
}

}  // namespace

std::vector<std::string> findings(const Json& analysis) {
  std::vector<std::string> out;
  say_losses(analysis, out);
  say_gates(field(analysis, "gates"), out);
  say_anchor(list_at(analysis, "reinjection"), out);
  say_gain(field(analysis, "dynamics"), out);
  say_difficulty(field(analysis, "difficulty"), out);
  say_heads(field(analysis, "heads"), out);
  return out;
}

}  // namespace grt
