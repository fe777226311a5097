// Charts made of bars.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/chart_layout.h"

namespace grt::svg {
namespace {

double count(std::size_t n) { return static_cast<double>(std::max<std::size_t>(1, n)); }

// Breaks at spaces into lines no wider than `width` where it can.
std::vector<std::string> wrapped(const std::string& words, double width) {
  std::vector<std::string> lines(1);
  std::size_t at = 0;
  while (at <= words.size()) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    if (!lines.back().empty() && width_of(lines.back() + " " + word) > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines;
}

std::string bar_of(const Frame& f, const Bar& bar, double middle, double slot) {
  if (!std::isfinite(bar.value)) return text(middle, f.py(0) - 5, "–", "note", "middle");
  const double end = f.py(bar.value), zero = f.py(0), width = std::min(0.72 * slot, 64.0);
  std::string out = rectangle("bar f0", {middle - width / 2, std::min(end, zero), width, std::abs(end - zero)},
                              bar.label + ": " + number(bar.value));
  const std::size_t cut = bar.note.find('\n');
  const bool two = cut != bar.note.npos;
  if (width_of(bar.note.substr(0, cut)) > slot + 4) return out;
  const double y = bar.value < 0 ? end + 14 : end - (two ? 19 : 6);
  out += text(middle, y, bar.note.substr(0, cut), "", "middle");
  if (two && width_of(bar.note.substr(cut + 1)) < slot + 4)
    out += text(middle, y + 14, bar.note.substr(cut + 1), "note", "middle");
  return out;
}

Axis axis_of(const Bars& b) {  // with room for the notes
  std::vector<double> values;
  for (const Bar& bar : b.bars) values.push_back(bar.value);
  for (const Level& level : b.levels) values.push_back(level.at);
  Axis y = linear_axis(b.y_title, values, true);
  const auto two_lines = [](const Bar& bar) { return bar.note.find('\n') != bar.note.npos; };
  if (y.high > 0) y.high += (std::any_of(b.bars.begin(), b.bars.end(), two_lines) ? 0.1 : 0.03) * (y.high - y.low);
  if (y.low < 0) y.low -= 0.03 * (y.high - y.low);
  return y;
}

struct Names {
  std::string body;
  double more = 0;  // height beyond one line
};

Names names_of(const Bars& b, const Frame& f, double slot) {
  Names names;
  const auto every = static_cast<std::size_t>(std::ceil(22 / slot));  // where bars are many
  for (std::size_t i = 0; i < b.bars.size(); i += every) {
    const std::vector<std::string> lines = wrapped(b.bars[i].label, slot - 6);
    for (std::size_t line = 0; line < lines.size(); ++line) {
      const double down = 14 * static_cast<double>(line);
      names.body +=
          text(f.left + slot * (static_cast<double>(i) + 0.5), f.bottom() + 18 + down, lines[line], "tick", "middle");
      names.more = std::max(names.more, down);
    }
  }
  return names;
}

std::string bins_of(const Frame& f, const std::vector<double>& shares) {
  std::string out;
  const double bin = (f.x.high - f.x.low) / count(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (!std::isfinite(shares[i]) || shares[i] <= 0) continue;
    const double from = f.x.low + bin * static_cast<double>(i), left = f.px(from), top = f.py(shares[i]);
    out += rectangle("bar f0", {left + 0.5, top, f.px(from + bin) - left - 1, f.bottom() - top},
                     fmt::format("{} to {}: {}", number(from), number(from + bin), percent(shares[i])));
  }
  return out;
}

}  // namespace

Picture draw(const Bars& b) {
  Legend legend = legend_below_title(b.width);
  for (const Level& level : b.levels) legend.add(kLevelSample, level.label);
  const Frame f = frame_below(legend, b.width, {}, axis_of(b));
  const double slot = f.width / count(b.bars.size());
  std::string body = text(kLeft, kTitle, b.title, "title") + legend.body + axes(f);
  for (std::size_t i = 0; i < b.bars.size(); ++i)
    body += bar_of(f, b.bars[i], f.left + slot * (static_cast<double>(i) + 0.5), slot);
  if (f.y.low < 0)
    body += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", f.left, f.py(0), f.right());
  for (const Level& level : b.levels) body += level_line(f, level);
  const Names names = names_of(b, f, slot);
  body += names.body + text(f.left + f.width / 2, f.bottom() + 38 + names.more, b.x_title, "", "middle");
  return {b.title, body, b.width, f.bottom() + kBelow + names.more};
}

Picture draw(const Histograms& h) {
  constexpr double kGap = 22;
  const double height = h.charts.size() == 1 ? kBoxHeight : 110, down = height + 52;
  double most = 0;
  for (const Histogram& chart : h.charts)
    for (const double share : chart.shares)
      if (std::isfinite(share)) most = std::max(most, share);
  Axis x{"", h.low, h.high};
  for (const double at : {h.low, (h.low + h.high) / 2, h.high}) x.marks.push_back({at, number(at)});

  const std::size_t charts = std::max<std::size_t>(1, h.charts.size()),
                    rows = (charts + 5) / 6;  // six fit side by side
  const std::size_t columns = (charts + rows - 1) / rows;
  const double width = (h.width - kLeft - kRight + kGap) / count(columns) - kGap;
  std::string body = text(kLeft, kTitle, h.title, "title");
  for (std::size_t i = 0; i < h.charts.size(); ++i) {
    const double left = kLeft + (width + kGap) * static_cast<double>(i % columns);
    const double top = kTitle + 30 + down * static_cast<double>(i / columns);
    Frame f{left, top, width, height, x, percent_axis("", {most})};
    if (i % columns != 0)
      for (Mark& m : f.y.marks) m.label.clear();
    body += axes(f) + text(left + 4, top - 7, h.charts[i].label, "note") + bins_of(f, h.charts[i].shares);
  }
  const double bottom = kTitle + 30 + down * static_cast<double>(rows - 1) + height;
  body += text(kLeft, bottom + 38, h.x_title);
  return {h.title, body, h.width, bottom + kBelow};
}

}  // namespace grt::svg
