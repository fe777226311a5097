// The kinds of chart of the report: curves, bars, histograms and coloured grids. Each is a struct of data and words;
// draw() makes the picture. Values that are not finite leave a gap.
#pragma once

#include <string>
#include <vector>

#include "tools/analysis/axes.h"
#include "tools/analysis/json_fields.h"
#include "tools/analysis/svg.h"

namespace grt::svg {

struct Point {
  double x, y;
  bool hollow = false;  // a depth that training never used
};
struct Series {
  std::string label;  // in the legend, if not empty
  std::vector<Point> points = {};
  bool line = true, marks = true;
  std::vector<double> low = {}, high = {};  // a band around the line, of as many values as points, or none
};
struct Level {  // a dashed line to compare with
  double at;
  std::string label;
};

struct Curves {
  std::string title;
  Axis x, y;
  std::vector<Series> series = {};
  std::vector<Level> levels = {};
  double beyond = kUnknown;  // from this x on the background is shaded
  std::string beyond_label = {};
  double width = kHalf;
};
Picture draw(const Curves& curves);

struct Bar {
  std::string label;
  double value;
  std::string note;  // at the bar's end; a "\n" parts two lines
};
struct Bars {
  std::string title, x_title, y_title;
  std::vector<Bar> bars = {};
  std::vector<Level> levels = {};
  double width = kHalf;
};
Picture draw(const Bars& bars);

struct Histogram {
  std::string label;
  std::vector<double> shares;  // of bins of equal width
};
struct Histograms {  // small charts side by side with the same axes
  std::string title, x_title;
  double low, high;  // what the bins divide
  std::vector<Histogram> charts = {};
  double width = kFull;
};
Picture draw(const Histograms& histograms);

struct Heat {
  std::string title, row_title, column_title, key;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  // rows of values from 0 to 1
  double width = kHalf;
};
Picture draw(const Heat& heat);
std::string heat_colour(double value);  // "#rrggbb": 0 dark blue, 1 yellow, lightness rising evenly between

}  // namespace grt::svg
