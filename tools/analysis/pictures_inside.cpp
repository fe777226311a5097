// Pictures of what happens inside: states, tokens, weights, heads.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/analysis/chart_layout.h"
#include "tools/analysis/pictures.h"

namespace grt {
namespace {

using svg::Picture;
using svg::Series;

std::vector<std::vector<double>> matrix_of(const Json& rows) {
  std::vector<std::vector<double>> values;
  for (const Json& row : rows) values.push_back(numbers_of(row));
  return values;
}

struct Kind {
  const char *name, *letter, *css, *words;
};
constexpr std::array<Kind, 4> kKinds{{{"previous", "P", "f0", "P: previous token"},
                                      {"broadcast", "B", "f1", "B: broadcast (first token)"},
                                      {"self", "S", "f2", "S: the token itself"},
                                      {"other", "", "void", "other"}}};

const Kind& kind_named(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (name == kind.name) return kind;
  return kKinds.back();
}

constexpr double kCell = 22;

std::string kind_cell(const Json& step, const std::string& head, double x, double y) {
  const std::string name = text_at(step, "kind");
  const Kind& kind = kind_named(name);
  const std::string words =
      fmt::format("{}, step {}: {} (previous {}, self {}, first {})", head, svg::number(number_at(step, "step")), name,
                  svg::percent(number_at(step, "previous")), svg::percent(number_at(step, "self")),
                  svg::percent(number_at(step, "first")));
  return svg::rectangle(std::string("kind ") + kind.css, {x, y, kCell - 1, kCell - 5}, words) +
         (kind.letter[0] == 0 ? "" : svg::text(x + kCell / 2, y + 13, kind.letter, "on-hue", "middle"));
}

// One block's heads below each other, its steps side by side.
Picture block_kinds(const std::string& block, const std::vector<const Json*>& heads) {
  constexpr double kLeft = 26, kTop = 24, kRow = kCell - 4;
  const double bottom = kTop + kRow * static_cast<double>(heads.size());
  std::size_t columns = 0;
  std::string body;
  for (std::size_t r = 0; r < heads.size(); ++r) {
    const std::string name = svg::number(number_at(*heads[r], "head"));
    const double y = kTop + kRow * static_cast<double>(r);
    const Json& steps = list_at(*heads[r], "steps");
    body += svg::text(kLeft - 6, y + 13, name, "tick", "end");
    for (std::size_t s = 0; s < steps.size(); ++s)
      body += kind_cell(steps[s], block + ", head " + name, kLeft + kCell * static_cast<double>(s), y);
    if (r == 0)
      for (std::size_t s = 0; s < steps.size(); ++s)
        body += svg::text(kLeft + kCell * (static_cast<double>(s) + 0.5), bottom + 12,
                          svg::number(number_at(steps[s], "step")), "tick", "middle");
    columns = std::max(columns, steps.size());
  }
  body += svg::text(kLeft, 14, svg::shortened(block, 24));
  const double width = kLeft + std::max(kCell * static_cast<double>(columns), svg::width_of(svg::shortened(block, 24)));
  return {block, body, width, bottom + 20};
}

Series probability_of(const Json& trajectory) {
  Series series{quoted_target(trajectory), {}};
  for (const Json& exit : list_at(trajectory, "exits"))
    series.points.push_back({number_at(exit, "depth"), number_at(exit, "probability")});
  return series;
}

struct Unit {
  double size;
  const char* name;
};
// Of floating-point operations per token.
Unit unit_for(double most) {
  if (most >= 1e9) return {1e9, "billion"};
  if (most >= 1e6) return {1e6, "million"};
  if (most >= 1e3) return {1e3, "thousand"};
  return {1, "single"};
}

}  // namespace

Picture state_similarity(const Json& cka) {
  const std::vector<std::string> labels = texts_of(list_at(cka, "labels"));
  return draw(svg::Heat{"How alike the states are (CKA)", "state after", "state after",
                        "CKA: 0 unrelated, 1 the same up to rotation", labels, labels,
                        matrix_of(list_at(cka, "matrix"))});
}

Picture twin_similarity(const Json& cka) {
  const Json& twin = field(cka, "twin");
  const std::vector<std::vector<double>> values = matrix_of(list_at(twin, "matrix"));
  std::vector<std::string> rows = texts_of(list_at(cka, "labels"));
  for (std::size_t r = rows.size(); r < values.size(); ++r) rows.push_back(std::to_string(r));
  rows.resize(values.size());
  svg::Heat h{"Its states and a dense model's layers (CKA)",
              "state after",
              "layer of the dense twin",
              "CKA: 0 unrelated, 1 the same up to rotation",
              rows,
              texts_of(list_at(twin, "labels")),
              values};
  if (h.columns.size() > 12) h.width = svg::kFull;
  return draw(h);
}

Picture difficulty_line(const Json& difficulty) {
  const Json& deciles = list_at(difficulty, "deciles");
  const std::vector<double> losses = column(deciles, "loss_first_exit");
  const double slope = number_at(difficulty, "slope"), intercept = number_at(difficulty, "intercept");
  Series dots{"a tenth of the tokens", {}},
      line{fmt::format("line, R² = {}", svg::fixed(number_at(difficulty, "r2"), 3)), {}};
  dots.line = line.marks = false;
  std::vector<double> heights = column(deciles, "improvement");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    dots.points.push_back({losses[i], heights[i]});
    line.points.push_back({losses[i], intercept + slope * losses[i]});
    heights.push_back(intercept + slope * losses[i]);
  }
  svg::Curves c{"The harder the token, the more the steps help",
                svg::linear_axis("loss at the first exit (nats per token)", losses),
                svg::linear_axis("loss saved by all steps (nats)", heights, true)};
  c.series = {dots, line};
  return draw(c);
}

Picture gate_by_difficulty(const Json& difficulty) {
  svg::Bars b{"Do hard tokens have other gates?", "step", "correlation of gate and difficulty", {}, {}};
  for (const Json& row : list_at(difficulty, "gate_correlation")) {
    const double pearson = number_at(row, "pearson");
    b.bars.push_back({svg::number(number_at(row, "step")), pearson, svg::fixed(pearson, 2)});
  }
  return draw(b);
}

Picture singular_values(const Json& gate) {
  std::vector<Series> series{{"half that reads the state", {}}, {"half that reads the anchor", {}}};
  std::vector<double> all;
  std::size_t count = 0;
  for (std::size_t half = 0; half < 2; ++half) {
    const std::vector<double> values =
        numbers_of(list_at(gate, half == 0 ? "state_singular_values" : "anchor_singular_values"));
    for (std::size_t i = 0; i < values.size(); ++i)
      series[half].points.push_back({static_cast<double>(i + 1), values[i]});
    series[half].marks = values.size() <= 40;
    all.insert(all.end(), values.begin(), values.end());
    count = std::max(count, values.size());
  }
  svg::Curves c{"Singular values of the gate's first layer",
                svg::whole_axis("rank, from the largest", {1, static_cast<double>(count)}),
                svg::linear_axis("singular value", all, true)};
  c.series = series;
  return draw(c);
}

Picture row_cosines(const Json& inject) {
  svg::Histograms h{"Rows of inject: its two halves compared", "cosine of a row's state half and anchor half", -1, 1};
  h.width = svg::kHalf;
  h.charts.push_back({"share of rows", numbers_of(list_at(inject, "histogram"))});
  return draw(h);
}

Picture head_kinds(const Json& heads) {
  std::vector<std::string> blocks;
  std::vector<std::vector<const Json*>> members;
  for (const Json& head : list_at(heads, "list")) {
    const std::string block = text_at(head, "block");
    const auto at = static_cast<std::size_t>(std::find(blocks.begin(), blocks.end(), block) - blocks.begin());
    if (at == blocks.size()) {
      blocks.push_back(block);
      members.emplace_back();
    }
    members[at].push_back(&head);
  }
  std::vector<Picture> grids;
  double widest = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    grids.push_back(block_kinds(blocks[i], members[i]));
    widest = std::max(widest, grids.back().width);
  }
  const auto columns = static_cast<std::size_t>(std::max(1.0, (svg::kFull - 20) / (widest + 24)));
  const Picture all = svg::tile(grids, columns, 24);
  svg::Legend legend{26, 42, svg::kFull};
  for (const Kind& kind : kKinds)
    legend.add(svg::rectangle(kind.css, {2, -13, 20, 17}) + svg::text(12, 0, kind.letter, "on-hue", "middle"),
               kind.words);
  const std::string title = "What each attention head looks at: a row a head, a column a step";
  return {title,
          svg::text(0, 20, title, "title") + legend.body +
              fmt::format("<g transform=\"translate(0 {:.0f})\">\n{}</g>\n", legend.bottom() + 14, all.body),
          svg::kFull, legend.bottom() + 14 + all.height};
}

std::string quoted_target(const Json& trajectory) {
  const std::string prompt = text_at(trajectory, "prompt");
  std::size_t cut = prompt.size() > 28 ? prompt.find(' ', prompt.size() - 28) : 0;
  if (cut == prompt.npos) cut = 0;  // no space near the end: shortened from the other side
  const std::string end = svg::shortened(std::string_view(prompt).substr(cut), 34);
  return fmt::format("{}{} → {}", cut == 0 ? "" : "…", end, svg::shortened(text_at(trajectory, "target"), 18));
}

Picture target_probabilities(const std::string& kind, const std::vector<const Json*>& trajectories, double full_depth) {
  std::vector<Series> series;
  std::vector<double> depths, shares;
  double beyond = kUnknown;
  for (const Json* trajectory : trajectories) {
    series.push_back(probability_of(*trajectory));
    for (svg::Point& p : series.back().points) {
      depths.push_back(p.x);
      shares.push_back(p.y);
      if (p.x > full_depth && !(p.x >= beyond)) beyond = p.x;
    }
  }
  svg::Curves c{kind, svg::whole_axis("depth: times the core was applied", depths),
                svg::percent_axis("probability of the target", shares)};
  c.series = std::move(series);
  c.beyond = (full_depth + beyond) / 2;
  c.beyond_label = fmt::format("beyond R = {}", svg::number(full_depth));
  return draw(c);
}

Picture early_exits(const Json& models, double width) {
  std::vector<double> flops, losses;
  for (const Json& model : models)
    for (const Json& point : list_at(model, "points")) {
      flops.push_back(number_at(point, "flops_per_token"));
      losses.push_back(number_at(point, "loss"));
    }
  double most = 0;
  for (const double value : flops)
    if (std::isfinite(value)) most = std::max(most, value);
  const Unit unit = unit_for(most);
  for (double& value : flops) value /= unit.size;
  svg::Curves c{"Loss for the work done, stopping at every depth",
                svg::magnitude_axis(fmt::format("operations per token ({} FLOPs)", unit.name), flops),
                svg::linear_axis("loss (nats per token)", losses)};
  c.width = width;
  for (const Json& model : models) {
    Series series{text_at(model, "name"), {}};
    const std::string architecture = text_at(model, "architecture");
    if (!architecture.empty() && series.label.find(architecture) == series.label.npos)
      series.label += " (" + architecture + ")";
    for (const Json& point : list_at(model, "points"))
      series.points.push_back({number_at(point, "flops_per_token") / unit.size, number_at(point, "loss")});
    c.series.push_back(std::move(series));
  }
  return draw(c);
}

}  // namespace grt
