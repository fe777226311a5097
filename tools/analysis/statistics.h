// Statistics of vectors and samples, without models: what the measurements of a checkpoint are put together from.
// A statistic that is not defined (the cosine with a zero vector, the mean of nothing) is NaN, which JSON shows as
// null.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace grt {

double dot(std::span<const double> a, std::span<const double> b);
double norm(std::span<const double> a);
double distance(std::span<const double> a, std::span<const double> b);  // |a - b|
double cosine(std::span<const double> a, std::span<const double> b);

// The mean of what is added; NaNs are passed over.
class Mean {
 public:
  void add(double x);
  double value() const;
  double deviation() const;  // of the sample as a population

 private:
  std::int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
};

// Shares of the values in `bins` equal parts of [low, high]; what lies outside counts in the first or last one.
class Histogram {
 public:
  Histogram(double low, double high, int bins);
  void add(double x);
  std::vector<double> shares() const;

 private:
  double low_, high_;
  std::vector<std::int64_t> counts_;
};

// y = slope x + intercept by least squares, and the share of y's variance that it explains.
struct Line {
  double slope, intercept, r2;
};
Line fit_line(std::span<const double> x, std::span<const double> y);

double pearson(std::span<const double> x, std::span<const double> y);

// The tokens in ten equal parts by their loss at the first exit, easiest first (of equal losses the earlier first).
struct Decile {
  std::int64_t tokens;
  double loss_first, loss_full;  // means
  double improvement() const { return loss_first - loss_full; }
};
std::vector<Decile> deciles(std::span<const double> loss_first, std::span<const double> loss_full);

}  // namespace grt
