// SVG text. Its escaping is the only place where words of an analysis become markup.
#include "tools/analysis/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "train/utf8.h"

namespace grt::svg {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int kColours = 6;
// One hue a series, told apart by colour-blind readers too; the second is for dark mode.
struct Hue {
  std::string_view light, dark;
};
constexpr std::array<Hue, kColours> kHues{{{"#0069a8", "#63b8f0"},
                                           {"#c24a00", "#f0a04b"},
                                           {"#00795a", "#45c9a0"},
                                           {"#9c3d7c", "#e090c4"},
                                           {"#7a6400", "#e0d05a"},
                                           {"#4a4f57", "#c9d1d9"}}};
// Centred on the point that the path has moved to.
constexpr std::array<std::string_view, 4> kShapes{"m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
                                                  "m-3.2 -3.2h6.4v6.4h-6.4z", "m0 -4.4l4.2 7.4h-8.4z",
                                                  "m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z"};

constexpr std::string_view kStyle = R"(svg { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
svg text { fill: #1f2328 }
svg .title { font-size: 14px; font-weight: 600 }
svg .note, svg .tick { font-size: 11px; fill: #57606a }
svg .page { fill: #ffffff }
svg .grid { stroke: #d8dee4; stroke-width: 1 }
svg .axis { stroke: #57606a; stroke-width: 1; fill: none }
svg .level { stroke: #57606a; stroke-width: 1.4; stroke-dasharray: 5 4; fill: none }
svg .beyond { fill: #57606a; opacity: 0.1 }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round }
svg .dash1 { stroke-dasharray: 7 3 } svg .dash2 { stroke-dasharray: 2 3 } svg .dash3 { stroke-dasharray: 8 3 2 3 }
svg .band { opacity: 0.18 }
svg .hollow { fill: #ffffff; stroke-width: 1.8 }
svg .void { fill: #d8dee4 }
svg .on-dark { fill: #ffffff; font-size: 11px } svg .on-light { fill: #1f2328; font-size: 11px }
svg .on-hue { fill: #ffffff; font-size: 11px; font-weight: 600 }
)";
constexpr std::string_view kDark = R"(svg text { fill: #e6edf3 } svg .note, svg .tick { fill: #9ea7b3 }
svg .page, svg .hollow { fill: #0d1117 } svg .grid { stroke: #2b323b } svg .axis, svg .level { stroke: #9ea7b3 }
svg .beyond { fill: #9ea7b3 } svg .void { fill: #3d444d }
svg .on-dark { fill: #ffffff } svg .on-light { fill: #1f2328 } svg .on-hue { fill: #0d1117 }
)";

std::string hues(std::string_view Hue::*mode) {
  std::string rules;
  for (int i = 0; i < kColours; ++i)
    rules += fmt::format("svg .s{0} {{ stroke: {1} }} svg .f{0} {{ fill: {1} }}\n", i, kHues[i].*mode);
  return rules;
}

// Characters that XML forbids, that show nothing, or that reorder the text around them.
bool unprintable(char32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) ||
         (c & 0xFFFE) == 0xFFFE;
}

void append_escaped(std::string& out, std::string_view bytes, char32_t c) {
  if (c == '&') {
    out += "&amp;";
  } else if (c == '<') {
    out += "&lt;";
  } else if (c == '>') {
    out += "&gt;";
  } else if (c == '"') {
    out += "&quot;";
  } else if (c == '\'') {
    out += "&#39;";
  } else if (c == '\n' || c == '\t') {
    out += c == '\n' ? "\\n" : "\\t";
  } else if (c < 0x20 || c == 0x7F) {
    out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
  } else if (unprintable(c)) {
    out += kReplacement;
  } else {
    out += bytes;
  }
}

// Shown when the pointer rests on the element around it.
std::string hint(std::string_view words) { return words.empty() ? "" : "<title>" + escape(words) + "</title>"; }

int shape_of(int series) { return (series + series / kColours) % static_cast<int>(kShapes.size()); }

}  // namespace

std::string escape(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const CodePoint c = first_code_point(bytes);
    if (c.state == CodePoint::State::whole) {
      append_escaped(out, bytes.substr(0, c.length), c.value);
    } else {
      out += kReplacement;
    }
    bytes.remove_prefix(c.length);
  }
  return out;
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "–";
  const std::string digits = fmt::format("{:.{}f}", std::abs(value), decimals);
  const bool zero = digits.find_first_not_of("0.") == digits.npos;
  return (value < 0 && !zero ? "−" : "") + digits;
}

std::string number(double value) {
  const double size = std::abs(value);
  if (std::isfinite(value) && size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.2e}", value);
  std::string digits = fixed(value, size >= 100 ? 1 : 3);
  if (digits.find('.') == digits.npos) return digits;
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.back() == '.') digits.pop_back();
  return digits;
}

std::string percent(double share) {
  const double value = 100 * share, size = std::abs(value);
  if (!std::isfinite(value)) return "–";
  if (value == 0) return "0\u00A0%";
  if (size < 0.005) return value < 0 ? "> −0.01\u00A0%" : "< 0.01\u00A0%";
  const int decimals = size < 0.995 ? 2 : size < 9.95 ? 1 : 0;
  return fixed(value, decimals) + "\u00A0%";
}

std::string shortened(std::string_view words, std::size_t characters) {
  std::size_t at = 0, end = 0;
  for (std::size_t n = 0; at < words.size(); ++n) {
    if (n + 1 == characters) end = at;
    if (n == characters) return std::string(words.substr(0, end)) + "…";
    at += first_code_point(words.substr(at)).length;
  }
  return std::string(words);
}

double width_of(std::string_view words) {
  double width = 0;
  while (!words.empty()) {
    const CodePoint c = first_code_point(words);
    width += c.value >= 0x1100 && !(c.value >= 0x2000 && c.value < 0x2400) ? 12.5 : 6.4;
    words.remove_prefix(c.length);
  }
  return width;
}

std::string text(double x, double y, std::string_view words, std::string_view css, std::string_view anchor) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", css, x, y, anchor,
                     escape(words));
}

std::string mark(int series, double x, double y, bool hollow, std::string_view words) {
  const std::string css = hollow ? fmt::format("hollow s{}", series % kColours) : fill_class(series);
  return fmt::format("<path class=\"mark {}\" d=\"M{:.1f} {:.1f}{}\">{}</path>\n", css, x, y, kShapes[shape_of(series)],
                     hint(words));
}

std::string rectangle(std::string_view css, const Box& box, std::string_view words, std::string_view colour) {
  const std::string fill = colour.empty() ? "" : fmt::format(" fill=\"{}\"", colour);
  return fmt::format("<rect class=\"{}\"{} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">{}</rect>\n",
                     css, fill, box.x, box.y, box.width, box.height, hint(words));
}

std::string fill_class(int series) { return fmt::format("f{}", series % kColours); }

std::string line_class(int series) { return fmt::format("curve s{} dash{}", series % kColours, shape_of(series)); }

std::string inline_svg(const Picture& p) {
  return fmt::format(
      "<svg role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1:.0f} {2:.0f}\" width=\"{1:.0f}\" "
      "height=\"{2:.0f}\">\n{3}</svg>\n",
      escape(p.title), p.width, p.height, p.body);
}

std::string svg_file(const Picture& p) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n<title>{2}</title>\n<style>\n{3}</style>\n"
      "<rect class=\"page\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n{4}</svg>\n",
      p.width, p.height, escape(p.title), style(), p.body);
}

Picture tile(const std::vector<Picture>& pictures, std::size_t columns, double gap) {
  Picture all;
  double x = 0, y = 0, row_height = 0;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    if (i != 0 && i % columns == 0) {
      y += row_height + gap;
      x = row_height = 0;
    }
    const Picture& p = pictures[i];
    all.body += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}</g>\n", x, y, p.body);
    row_height = std::max(row_height, p.height);
    all.width = std::max(all.width, x + p.width);
    all.height = y + row_height;
    x += p.width + gap;
  }
  return all;
}

std::string style() {
  return fmt::format("{}{}@media screen and (prefers-color-scheme: dark) {{\n{}{}}}\n", kStyle, hues(&Hue::light),
                     kDark, hues(&Hue::dark));
}

}  // namespace grt::svg
