// Round numbers along an axis: 1, 2 or 5 times a power of ten.
#include "tools/analysis/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/svg.h"

namespace grt::svg {
namespace {

std::vector<double> finite(const std::vector<double>& values) {
  std::vector<double> kept;
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept), [](double v) { return std::isfinite(v); });
  return kept;
}

// 1, 2 or 5 times a power of ten, so that about `about` of them fill the range.
double round_step(double range, int about) {
  const double raw = range / about, size = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (size * factor >= raw) return size * factor;
  return size * 10;
}

std::vector<Mark> linear_marks(double low, double high, int about) {
  const double step = round_step(high - low, about);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  std::vector<Mark> marks;
  for (double i = std::ceil(low / step - 1e-9); i <= std::floor(high / step + 1e-9); ++i)
    marks.push_back({i * step, fixed(i * step, decimals)});
  return marks;
}

std::vector<Mark> logarithmic_marks(double low, double high) {
  const bool sparse = std::log10(high / low) > 2.5;
  std::vector<Mark> marks;
  for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10, power) <= high; ++power)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = factor * std::pow(10, power);
      if (at >= low && at <= high && (factor == 1 || !sparse)) marks.push_back({at, number(at)});
    }
  return marks;
}

}  // namespace

double Axis::place(double value) const {
  return logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
}

Axis linear_axis(std::string title, const std::vector<double>& values, bool with_zero) {
  std::vector<double> all = finite(values);
  if (with_zero || all.empty()) all.push_back(0);
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double spread = *most - *least;
  const double pad = spread > 1e-9 * std::max(std::abs(*least), std::abs(*most))
                         ? 0.08 * spread
                         : std::max(0.05, 0.05 * std::abs(*most));
  Axis axis{std::move(title), *least, *most};
  if (!(with_zero && *least == 0)) axis.low -= pad;
  if (!(with_zero && *most == 0 && spread != 0)) axis.high += pad;
  axis.marks = linear_marks(axis.low, axis.high, 6);
  return axis;
}

Axis whole_axis(std::string title, const std::vector<double>& values) {
  const std::vector<double> all = finite(values);
  const double least = all.empty() ? 0 : *std::min_element(all.begin(), all.end());
  const double most = all.empty() ? 1 : *std::max_element(all.begin(), all.end());
  const double room = std::max(0.35, 0.03 * (most - least));
  Axis axis{std::move(title), least - room, most + room};
  const double step = std::max(1.0, round_step(std::max(1.0, most - least), 12));
  for (double at = std::ceil(least / step) * step; at <= most; at += step) axis.marks.push_back({at, fixed(at, 0)});
  return axis;
}

Axis magnitude_axis(std::string title, const std::vector<double>& values) {
  const std::vector<double> all = finite(values);
  if (all.empty()) return linear_axis(std::move(title), all, true);
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  if (*least <= 0 || *most < 30 * *least) return linear_axis(std::move(title), all, true);
  Axis axis{title + ", logarithmic", *least / 1.3, *most * 1.3};
  axis.logarithmic = true;
  axis.marks = logarithmic_marks(axis.low, axis.high);
  return axis;
}

Axis percent_axis(std::string title, const std::vector<double>& shares) {
  Axis axis = linear_axis(std::move(title), shares, true);
  axis.marks.clear();
  for (const Mark& mark : linear_marks(100 * axis.low, 100 * axis.high, 6))
    axis.marks.push_back({mark.at / 100, mark.label + " %"});
  return axis;
}

std::string axes(const Frame& f) {
  std::string out;
  for (const Mark& m : f.y.marks) {
    const double y = f.py(m.at);
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", f.left, y, f.right());
    out += text(f.left - 8, y + 4, m.label, "tick", "end");
  }
  for (const Mark& m : f.x.marks) {
    const double x = f.px(m.at);
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>\n", x, f.bottom());
    out += text(x, f.bottom() + 18, m.label, "tick", "middle");
  }
  out += fmt::format("<path class=\"axis box\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", f.left, f.top, f.bottom(),
                     f.right());
  out += text(f.left + f.width / 2, f.bottom() + 38, f.x.title, "", "middle");
  out += fmt::format("<g transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</g>\n", f.left - 48,
                     f.top + f.height / 2, text(0, 0, f.y.title, "", "middle"));
  return out;
}

}  // namespace grt::svg
