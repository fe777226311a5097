// The axes of a chart: ranges that hold the data, round numbers beside them, and where a value lies in pixels.
#pragma once

#include <string>
#include <vector>

namespace grt::svg {

struct Mark {
  double at;
  std::string label;
};
struct Axis {
  std::string title;
  double low = 0, high = 1;  // low < high
  std::vector<Mark> marks = {};
  bool logarithmic = false;
  double place(double value) const;  // 0 at low, 1 at high
};

// Axes that hold all finite values with room to spare.
Axis linear_axis(std::string title, const std::vector<double>& values, bool with_zero = false);
Axis whole_axis(std::string title, const std::vector<double>& values);      // marks at whole numbers
Axis magnitude_axis(std::string title, const std::vector<double>& values);  // logarithmic from a factor of 30 on
Axis percent_axis(std::string title, const std::vector<double>& shares);    // from 0

struct Frame {  // the box of a chart, in pixels
  double left, top, width, height;
  Axis x, y;
  double px(double value) const { return left + x.place(value) * width; }
  double py(double value) const { return top + (1 - y.place(value)) * height; }
  double right() const { return left + width; }
  double bottom() const { return top + height; }
};
std::string axes(const Frame& frame);

}  // namespace grt::svg
