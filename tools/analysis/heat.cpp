// Tables of values from 0 to 1 as coloured grids.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/analysis/chart_layout.h"

namespace grt::svg {
namespace {

// From dark blue over grey to yellow: lightness alone tells them apart, also in print.
constexpr std::array<std::array<double, 3>, 3> kStops{{{27, 63, 117}, {127, 128, 132}, {255, 226, 106}}};
constexpr double kReadableFrom = 0.55;  // dark words on cells of at least this value, white ones on others
constexpr double kSmallestWithNumber = 30;

std::string cell_of(const Heat& heat, std::size_t row, std::size_t column, double x, double y, double size) {
  const bool given = row < heat.values.size() && column < heat.values[row].size();
  const double value = given ? heat.values[row][column] : kUnknown;
  const bool known = std::isfinite(value);
  std::string out = rectangle(known ? "cell" : "void", {x, y, size - 1, size - 1},
                              fmt::format("{} / {}: {}", heat.rows[row], heat.columns[column], number(value)),
                              known ? heat_colour(value) : "");
  if (size >= kSmallestWithNumber)
    out += text(x + (size - 1) / 2, y + size / 2 + 4, fixed(value, 2),
                known && value < kReadableFrom ? "on-dark" : "on-light", "middle");
  return out;
}

// The colours of 0 to 1 with their numbers.
std::string key_of(const std::string& words, double x, double y) {
  constexpr int kSteps = 40;
  constexpr double kStep = 4;
  std::string out = text(x, y, words, "note");
  for (int i = 0; i < kSteps; ++i)
    out += rectangle("key", {x + kStep * i, y + 8, kStep + 0.3, 10}, "", heat_colour(i / (kSteps - 1.0)));
  for (const double at : {0.0, 0.5, 1.0}) out += text(x + at * kSteps * kStep, y + 32, number(at), "tick", "middle");
  return out;
}

double widest(const std::vector<std::string>& labels) {
  double width = 0;
  for (const std::string& label : labels) width = std::max(width, width_of(label));
  return width;
}

// Each label of as many as fit.
std::size_t every(double needed, double size) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(needed / size)));
}

}  // namespace

std::string heat_colour(double value) {
  const double at = 2 * std::clamp(value, 0.0, 1.0);
  const int from = at < 1 ? 0 : 1;
  std::string colour = "#";
  for (int i = 0; i < 3; ++i)
    colour += fmt::format("{:02x}", std::lround(std::lerp(kStops[from][i], kStops[from + 1][i], at - from)));
  return colour;
}

Picture draw(const Heat& h) {
  const double left = 34 + widest(h.rows), top = kTitle + 16;
  const double columns = static_cast<double>(h.columns.size());
  const double size = std::clamp((h.width - left - kRight) / std::max(1.0, columns), 6.0, 44.0);
  const double bottom = top + size * static_cast<double>(h.rows.size());
  std::string body = text(left, kTitle, h.title, "title");
  for (std::size_t r = 0; r < h.rows.size(); ++r) {
    const double y = top + size * static_cast<double>(r);
    if (r % every(13, size) == 0) body += text(left - 8, y + size / 2 + 4, h.rows[r], "tick", "end");
    for (std::size_t c = 0; c < h.columns.size(); ++c)
      body += cell_of(h, r, c, left + size * static_cast<double>(c), y, size);
  }
  for (std::size_t c = 0; c < h.columns.size(); c += every(0.92 * widest(h.columns) + 2, size))
    body += text(left + size * (static_cast<double>(c) + 0.5), bottom + 16, h.columns[c], "tick", "middle");
  body += text(left + size * columns / 2, bottom + 36, h.column_title, "", "middle");
  body += fmt::format("<g transform=\"translate(14 {:.1f}) rotate(-90)\">{}</g>\n", (top + bottom) / 2,
                      text(0, 0, h.row_title, "", "middle"));
  body += key_of(h.key, left, bottom + 62);
  return {h.title, body, h.width, bottom + 102};
}

}  // namespace grt::svg
