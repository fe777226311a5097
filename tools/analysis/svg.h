// The elements of a picture as SVG text, and the one style that all pictures have: light, dark and printed. Words are
// escaped here, where they become markup, and nowhere else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace grt::svg {

inline constexpr double kHalf = 480, kFull = 976;  // widths in pixels: two halves and the gap between them

// Markup that shows the bytes as text, whatever they are: in an element or in a quoted attribute. Control characters
// are written as in C (a new line "\n"); what is no UTF-8, no character or would reorder the line becomes U+FFFD.
std::string escape(std::string_view bytes);

std::string fixed(double value, int decimals);  // "–" for what is not finite
std::string number(double value);               // three decimals at most, without trailing zeros
std::string percent(double share);
std::string shortened(std::string_view words, std::size_t characters);  // with "…" where it was cut
double width_of(std::string_view words);                                // in pixels, roughly, at 12 px

std::string text(double x, double y, std::string_view words, std::string_view css = "",
                 std::string_view anchor = "start");
// What is drawn at a point: one of four shapes, so that colour is never the only difference. The path begins at (x, y).
// `words` show when the pointer rests on it.
std::string mark(int series, double x, double y, bool hollow, std::string_view words);
struct Box {
  double x, y, width, height;
};
// Filled as css says, or with `colour`.
std::string rectangle(std::string_view css, const Box& box, std::string_view words = "", std::string_view colour = "");
// css of a series' line, whose dashes differ as the colours do, and of what is filled in its colour.
std::string line_class(int series);
std::string fill_class(int series);

struct Picture {  // body: elements; the title is for readers who cannot see it
  std::string title, body;
  double width = 0, height = 0;
};

std::string inline_svg(const Picture& picture);  // for a page that has style()
std::string svg_file(const Picture& picture);    // by itself
// In rows of `columns`.
Picture tile(const std::vector<Picture>& pictures, std::size_t columns, double gap);

std::string style();  // CSS rules for everything in pictures

}  // namespace grt::svg
