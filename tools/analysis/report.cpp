// The order of the chapters, and what stands above and below them.
#include "tools/analysis/report.h"

#include <fmt/format.h>

#include "core/files.h"
#include "tools/analysis/html.h"
#include "tools/analysis/json_fields.h"
#include "tools/analysis/pictures.h"
#include "tools/analysis/sections.h"

namespace grt {
namespace {

struct Chapter {
  const char *id, *title;
  std::string (*html)(const Json&);
};
constexpr Chapter kChapters[] = {{"exits", "Loss by depth", exits_section},
                                 {"gates", "The gate", gates_section},
                                 {"reinjection", "The anchor", reinjection_section},
                                 {"dynamics", "How the state moves", dynamics_section},
                                 {"cka", "How alike the states are", similarity_section},
                                 {"difficulty", "Easy and hard tokens", difficulty_section},
                                 {"weights", "Weights", weights_section},
                                 {"heads", "Attention heads", heads_section},
                                 {"trajectories", "Single predictions", trajectories_section},
                                 {"early_exit", "Stopping early", early_exit_section},
                                 {"definitions", "Definitions", definitions_section}};

constexpr const char* kRecurrent =
    "A recurrent model applies the same blocks, its core, again and again. Each application is a step; the number of "
    "steps taken is the depth. The prelude turns tokens into the first state (depth 0), and the coda turns the state "
    "after any step into a prediction, so every depth is an exit. R is the full depth of training.";
constexpr const char* kGated =
    "In the GRT a step makes a proposal from the state and from the anchor, the prelude's output, and a gate between 0 "
    "and 1 mixes it in: new state = gate × state + (1 − gate) × proposal. The update is what that adds to the state.";
constexpr const char* kDense =
    "A dense model applies each of its blocks once. Its depth is the number of blocks applied; reading a prediction "
    "off after each of them makes an exit of every depth. R is the number of blocks.";

std::string name_of(const Json& analysis) {
  const std::string path = text_at(analysis, "checkpoint");
  return path.empty() ? "a model" : path;
}

std::string subtitle_of(const Json& analysis) {
  const double tokens = number_at(analysis, "tokens"), windows = number_at(analysis, "windows");
  return fmt::format("{} {}, R = {}; measured on {} tokens of {} ({} windows), seed {}.",
                     text_at(analysis, "architecture"), text_at(analysis, "layout"),
                     svg::number(number_at(analysis, "full_depth")), svg::fixed(tokens, 0), text_at(analysis, "data"),
                     svg::fixed(windows, 0), svg::fixed(number_at(analysis, "seed"), 0));
}

std::string opening_of(const Json& analysis) {
  const std::string architecture = text_at(analysis, "architecture");
  return html::paragraph(architecture == "dense" ? kDense : kRecurrent) +
         html::paragraph(architecture == "grt" ? kGated : "") + html::bullets(findings(analysis));
}

std::string closing_of(const Json& analysis) {
  return text_at(analysis, "architecture") == "grt"
             ? "What the paper prints is quoted from public notes on it. It is of GRT Large (1+5×6+5, R = 6, 290 "
               "million parameters, "
               "trained on 9.8 billion tokens): the course of a curve can be compared with it, a value cannot."
             : "";
}

}  // namespace

std::string report_html(const Json& analysis) {
  std::vector<html::Section> sections;
  for (const Chapter& chapter : kChapters)
    if (std::string html = chapter.html(analysis); !html.empty())
      sections.push_back({chapter.id, chapter.title, std::move(html)});
  return html::page("What happens inside " + name_of(analysis), subtitle_of(analysis), opening_of(analysis), sections,
                    closing_of(analysis));
}

void write_report(const Json& analysis, const std::filesystem::path& file) { write_file(file, report_html(analysis)); }

std::string overview_svg(const Json& analysis) {
  std::vector<svg::Picture> pictures;
  if (!list_at(analysis, "exits").empty()) pictures.push_back(loss_by_depth(analysis));
  if (!list_at(field(analysis, "gates"), "steps").empty()) pictures.push_back(gate_openness(field(analysis, "gates")));
  if (!list_at(field(analysis, "cka"), "matrix").empty()) pictures.push_back(state_similarity(field(analysis, "cka")));
  if (!list_at(analysis, "early_exit").empty())
    pictures.push_back(early_exits(list_at(analysis, "early_exit"), svg::kHalf));
  constexpr double kMargin = 12;
  svg::Picture all = svg::tile(pictures, 2, 16);
  all.body = fmt::format("<g transform=\"translate({0:.0f} {0:.0f})\">\n{1}</g>\n", kMargin, all.body);
  all.width += 2 * kMargin;
  all.height += 2 * kMargin;
  all.title = "What happens inside " + name_of(analysis);
  return svg::svg_file(all);
}

void write_overview_svg(const Json& analysis, const std::filesystem::path& file) {
  write_file(file, overview_svg(analysis));
}

}  // namespace grt
