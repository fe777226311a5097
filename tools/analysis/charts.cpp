// Curves: legend above the box, then levels, bands, lines and marks, later ones on top.
#include "tools/analysis/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/chart_layout.h"

namespace grt::svg {
namespace {

bool known(const Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

std::string line_of(const Frame& f, const Series& series, int index) {
  std::string d;
  bool open = false;
  for (const Point& p : series.points) {
    if (known(p)) d += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", f.px(p.x), f.py(p.y));
    open = known(p);
  }
  return d.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", line_class(index), d);
}

std::string band_of(const Frame& f, const Series& series, int index) {
  std::string there, back;
  for (std::size_t i = 0; i < std::min(series.low.size(), series.points.size()); ++i) {
    if (!std::isfinite(series.low[i]) || !std::isfinite(series.high[i])) continue;
    const double x = f.px(series.points[i].x);
    there += fmt::format("{}{:.1f} {:.1f}", there.empty() ? "M" : "L", x, f.py(series.high[i]));
    back = fmt::format("L{:.1f} {:.1f}", x, f.py(series.low[i])) + back;
  }
  return there.empty() ? "" : fmt::format("<path class=\"band {}\" d=\"{}{}z\"/>\n", fill_class(index), there, back);
}

std::string series_sample(const Series& series, int index) {
  std::string out;
  if (!series.low.empty()) out += fmt::format("<path class=\"band {}\" d=\"M0 -10h24v12h-24z\"/>", fill_class(index));
  if (series.line) out += fmt::format("<path class=\"{}\" d=\"M0 -4h24\"/>", line_class(index));
  if (series.marks) out += fmt::format("<g transform=\"translate(12 -4)\">{}</g>", mark(index, 0, 0, false, ""));
  return out;
}

std::string beyond_region(const Frame& f, const Curves& c) {
  if (!std::isfinite(c.beyond) || c.beyond >= f.x.high) return "";
  const double x = f.px(c.beyond), words = width_of(c.beyond_label);
  const bool fits = words < f.right() - x - 8;
  return rectangle("beyond", {x, f.top, f.right() - x, f.height}) +
         (fits ? text(x + 6, f.top + 15, c.beyond_label, "note") : "");
}

}  // namespace

void Legend::add(const std::string& sample, const std::string& words) {
  const std::string label = shortened(words, static_cast<std::size_t>((right - left - 30) / 6.4));
  const double width = 30 + width_of(label) + 18;
  if (rows == 0 || (x > left && x + width - 18 > right)) {
    x = left;
    ++rows;
  }
  const double y = top + kLegendRow * (rows - 1);
  body += fmt::format("<g transform=\"translate({:.1f} {:.1f})\">{}</g>\n", x, y, sample) + text(x + 30, y, label);
  x += width;
}

Legend legend_below_title(double width) { return {kLeft, kTitle + 22, width - kRight}; }

Frame frame_below(const Legend& legend, double width, const Axis& x, const Axis& y) {
  return {kLeft, (legend.rows ? legend.bottom() : kTitle) + 16, width - kLeft - kRight, kBoxHeight, x, y};
}

std::string level_line(const Frame& f, const Level& level) {
  if (!std::isfinite(level.at)) return {};
  return fmt::format("<path class=\"level\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", f.left, f.py(level.at), f.right());
}

double Legend::bottom() const { return top + kLegendRow * (rows - 1); }

Picture draw(const Curves& c) {
  Legend legend = legend_below_title(c.width);
  for (std::size_t i = 0; i < c.series.size(); ++i)
    if (!c.series[i].label.empty()) legend.add(series_sample(c.series[i], static_cast<int>(i)), c.series[i].label);
  for (const Level& level : c.levels) legend.add(kLevelSample, level.label);

  const Frame f = frame_below(legend, c.width, c.x, c.y);
  std::string body = text(kLeft, kTitle, c.title, "title") + legend.body + beyond_region(f, c) + axes(f);
  for (const Level& level : c.levels) body += level_line(f, level);
  for (std::size_t i = 0; i < c.series.size(); ++i) body += band_of(f, c.series[i], static_cast<int>(i));
  for (std::size_t i = 0; i < c.series.size(); ++i) {
    const Series& series = c.series[i];
    if (series.line) body += line_of(f, series, static_cast<int>(i));
    if (!series.marks) continue;
    for (const Point& p : series.points)
      if (known(p))
        body +=
            mark(static_cast<int>(i), f.px(p.x), f.py(p.y), p.hollow,
                 fmt::format("{}{}{} at {}", series.label, series.label.empty() ? "" : ": ", number(p.y), number(p.x)));
  }
  return {c.title, body, c.width, f.bottom() + kBelow};
}

}  // namespace grt::svg
