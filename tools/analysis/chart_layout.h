// Where the parts of a chart lie: title, legend, box, and what both kinds of charts with axes have in common.
#pragma once

#include <string>

#include "tools/analysis/charts.h"

namespace grt::svg {

// In pixels: beside the box, the title's text line, the box, from the box to the end, a row of the legend.
inline constexpr double kLeft = 66, kRight = 14, kTitle = 20, kBoxHeight = 230, kBelow = 48, kLegendRow = 19;
inline constexpr const char* kLevelSample = "<path class=\"level\" d=\"M0 -4h24\"/>";

// A row of samples and words under a title, broken where it is too long.
struct Legend {
  double left, top, right;  // of the first row's text line; how far rows reach
  std::string body = {};
  double x = 0;
  int rows = 0;
  void add(const std::string& sample, const std::string& words);  // the sample is 24 px wide, its middle at (12, -4)
  double bottom() const;
};

Legend legend_below_title(double width);
Frame frame_below(const Legend& legend, double width, const Axis& x, const Axis& y);
std::string level_line(const Frame& frame, const Level& level);

}  // namespace grt::svg
