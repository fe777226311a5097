// Chapters on what happens inside: states, tokens, weights, heads; and the comparison of models.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/json_fields.h"
#include "tools/analysis/pictures.h"
#include "tools/analysis/sections.h"

namespace grt {
namespace {

using html::figure;
using svg::fixed;
using svg::number;
using svg::percent;

std::string heads_summary(const Json& list) {
  std::size_t changing = 0;
  for (const Json& head : list) changing += true_at(head, "changes", false) ? 1 : 0;
  return changing == 0 ? fmt::format("All {} heads keep their kind at every step.", list.size())
                       : fmt::format("{} of {} heads change their kind from step to step.", changing, list.size());
}

std::string thresholds_of(const Json& thresholds) {
  std::string out;
  if (thresholds.is_object())
    for (const auto& [name, value] : thresholds.items())
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                         value.is_string() ? as_text(value) : number(as_number(value)));
  return out.empty() ? "" : " Thresholds: " + out + ".";
}

// The five likeliest tokens at every exit, side by side.
std::string top_tokens(const Json& trajectory) {
  const Json& exits = list_at(trajectory, "exits");
  const std::string target = text_at(trajectory, "target");
  html::Table t;
  t.head = {"depth"};
  std::vector<html::Cell> chances{{"probability", "word"}}, ranks{{"rank", "word"}};
  std::size_t most = 0;
  for (const Json& exit : exits) {
    t.head.push_back(number(number_at(exit, "depth")));
    chances.push_back({percent(number_at(exit, "probability"))});
    ranks.push_back({number(number_at(exit, "rank"))});
    most = std::max(most, list_at(exit, "top").size());
  }
  t.rows = {chances, ranks};
  for (std::size_t place = 0; place < most; ++place) {
    std::vector<html::Cell> row{{fmt::format("{}.", place + 1), "word"}};
    for (const Json& exit : exits) {
      const Json& top = list_at(exit, "top");
      if (place >= top.size()) {
        row.push_back({"–"});
        continue;
      }
      const std::string token = text_at(top[place], "token");
      const bool hit = !token.empty() && target.starts_with(token);
      row.push_back({"“" + token + "”", hit ? "hit" : "", percent(number_at(top[place], "probability"))});
    }
    t.rows.push_back(std::move(row));
  }
  return html::table(t);
}

}  // namespace

std::string similarity_section(const Json& analysis) {
  const Json& cka = field(analysis, "cka");
  std::vector<svg::Picture> pictures;
  std::string caption =
      "Linear CKA compares two sets of states, whatever way they are turned: 1 (yellow) if one is a turned or scaled "
      "copy of the other, 0 (dark blue) if they have nothing to do with each other.";
  if (!list_at(cka, "matrix").empty()) {
    pictures.push_back(state_similarity(cka));
    caption += printed(analysis,
                       "0.996 between the prelude and step 1, 0.33 to 0.65 between these and later steps, and at "
                       "least 0.907 among steps 2 to 6");
  }
  if (!list_at(field(cka, "twin"), "matrix").empty()) {
    pictures.push_back(twin_similarity(cka));
    caption +=
        printed(analysis,
                "that the prelude and step 1 are most like layer 2 of the dense model and later steps most like layer "
                "11, and that layers above 20 stay below 0.50");
  }
  return pictures.empty() ? "" : figure(pictures, caption);
}

std::string difficulty_section(const Json& analysis) {
  const Json& difficulty = field(analysis, "difficulty");
  std::vector<svg::Picture> pictures;
  std::string caption;
  if (!list_at(difficulty, "deciles").empty()) {
    pictures.push_back(difficulty_line(difficulty));
    caption +=
        "All tokens, sorted by their loss at the first exit and cut into ten equal parts; each mark is one part, the "
        "line is fitted to the ten. R² is the share of the differences that the line explains." +
        printed(analysis, "0.49 nats saved for the easiest tenth, 5.02 for the hardest, and R² = 0.998");
  }
  if (!list_at(difficulty, "gate_correlation").empty()) {
    pictures.push_back(gate_by_difficulty(difficulty));
    caption +=
        " Bars: the correlation of a token's mean gate with its loss at the first exit. Below 0: hard tokens have more "
        "open gates, so more of their state changes.";
  }
  return pictures.empty() ? "" : figure(pictures, caption);
}

std::string weights_section(const Json& analysis) {
  const Json& weights = field(analysis, "weights");
  const Json &gate = field(weights, "gate"), &inject = field(weights, "inject");
  std::vector<svg::Picture> pictures;
  std::string caption;
  if (!list_at(gate, "state_singular_values").empty() || !list_at(gate, "anchor_singular_values").empty()) {
    pictures.push_back(singular_values(gate));
    const double ratio = number_at(gate, "ratio");
    caption +=
        "The gate's first layer reads the state with one half of its weights and the anchor with the other; "
        "larger singular values mean that the gate listens more to that half. ";
    if (std::isfinite(ratio)) caption += fmt::format("Ratio of the largest, anchor to state: {}.", fixed(ratio, 2));
    caption += printed(analysis, "9.87 and 6.85 for the largest of the two halves");
  }
  if (!list_at(inject, "histogram").empty()) {
    pictures.push_back(row_cosines(inject));
    caption +=
        fmt::format(
            " Histogram: inject joins state and anchor; a row whose two halves point opposite ways (cosine below 0) "
            "works on the difference between them. Mean cosine {}, {} of rows above 0.5.",
            fixed(number_at(inject, "row_cosine_mean"), 3), percent(number_at(inject, "row_cosine_above_0.5"))) +
        printed(analysis, "a mean of −0.189 and 0.16 % of rows above 0.5");
  }
  return pictures.empty() ? "" : figure(pictures, caption);
}

std::string heads_section(const Json& analysis) {
  const Json& heads = field(analysis, "heads");
  if (list_at(heads, "list").empty()) return {};
  return figure(
      {head_kinds(heads)},
      "Where a head's attention goes, mostly: to the token before (P), to the first token (B, the same for all), to "
      "the token "
      "itself (S), or elsewhere (grey). A row of one colour is a head that does the same at every step. " +
          heads_summary(list_at(heads, "list")) + thresholds_of(field(heads, "thresholds")) +
          printed(
              analysis,
              "3 previous-token, 7 broadcast, 2 local and 86 general heads out of 100, with kinds that stay the same "
              "over the steps"));
}

std::string trajectories_section(const Json& analysis) {
  const Json& list = list_at(analysis, "trajectories");
  if (list.empty()) return {};
  std::vector<std::string> kinds;
  for (const Json& trajectory : list)
    if (const std::string kind = text_at(trajectory, "class");
        std::find(kinds.begin(), kinds.end(), kind) == kinds.end())
      kinds.push_back(kind);
  std::vector<svg::Picture> pictures;
  std::string tables;
  for (const std::string& kind : kinds) {
    std::vector<const Json*> members;
    for (const Json& trajectory : list)
      if (text_at(trajectory, "class") == kind) members.push_back(&trajectory);
    pictures.push_back(target_probabilities("Prompts: " + kind, members, number_at(analysis, "full_depth")));
    for (const Json* t : members)
      tables += html::heading(3, fmt::format("“{}” → “{}”  ({})", text_at(*t, "prompt"), text_at(*t, "target"), kind)) +
                top_tokens(*t);
  }
  return figure(
             pictures,
             "How likely the model finds the target, read off at every depth. Below: the five likeliest next tokens at "
             "every "
             "depth; in a frame those that the target begins with. Quotation marks show where a token begins and ends; "
             "\\n is a new line.") +
         tables;
}

std::string early_exit_section(const Json& analysis) {
  const Json& models = list_at(analysis, "early_exit");
  if (models.empty()) return {};
  return figure({early_exits(models, svg::kFull)},
                "Every mark is one exit of a model: to the right it costs more floating-point operations for each "
                "token, further down "
                "it predicts better. The lower curve is the better choice for the same work. An exit costs the blocks "
                "it runs and the "
                "output layer." +
                    printed(analysis, "about 92 % of the accuracy at half the steps"));
}

std::string definitions_section(const Json& analysis) {
  const Json& definitions = field(analysis, "definitions");
  if (!definitions.is_object() || definitions.empty()) return {};
  std::vector<std::pair<std::string, std::string>> terms;
  for (const auto& [term, words] : definitions.items()) terms.emplace_back(term, as_text(words));
  return html::definitions(terms);
}

}  // namespace grt
