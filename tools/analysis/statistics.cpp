#include "tools/analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace grt {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

void check_pairs(std::span<const double> x, std::span<const double> y) {
  check(x.size() == y.size(), "statistics: {} and {} values cannot be paired", x.size(), y.size());
}

double mean(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

// Sums of squares and products about the means.
struct Spread {
  double xx = 0, yy = 0, xy = 0;
};
Spread spread(std::span<const double> x, std::span<const double> y) {
  check_pairs(x, y);
  const double mx = mean(x), my = mean(y);
  Spread s;
  for (std::size_t i = 0; i < x.size(); ++i) {
    s.xx += (x[i] - mx) * (x[i] - mx);
    s.yy += (y[i] - my) * (y[i] - my);
    s.xy += (x[i] - mx) * (y[i] - my);
  }
  return s;
}

}  // namespace

double dot(std::span<const double> a, std::span<const double> b) {
  check_pairs(a, b);
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double norm(std::span<const double> a) { return std::sqrt(dot(a, a)); }

double distance(std::span<const double> a, std::span<const double> b) {
  check_pairs(a, b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double cosine(std::span<const double> a, std::span<const double> b) {
  const double scale = norm(a) * norm(b);
  return scale > 0 ? std::clamp(dot(a, b) / scale, -1.0, 1.0) : kUndefined;
}

void Mean::add(double x) {
  if (std::isnan(x)) return;
  ++count_;
  sum_ += x;
  squares_ += x * x;
}

double Mean::value() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : kUndefined; }

double Mean::deviation() const {
  const double m = value();
  return std::sqrt(std::max(0.0, squares_ / static_cast<double>(count_) - m * m));
}

Histogram::Histogram(double low, double high, int bins) : low_(low), high_(high), counts_(bins) {}

void Histogram::add(double x) {
  const double place = (x - low_) / (high_ - low_) * static_cast<double>(counts_.size());
  const double last = static_cast<double>(counts_.size() - 1);
  if (!std::isnan(x)) ++counts_[static_cast<std::size_t>(std::clamp(place, 0.0, last))];
}

std::vector<double> Histogram::shares() const {
  const double all = static_cast<double>(std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}));
  std::vector<double> shares;
  for (const std::int64_t n : counts_) shares.push_back(static_cast<double>(n) / all);
  return shares;
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
  const Spread s = spread(x, y);
  const double slope = s.xx > 0 ? s.xy / s.xx : kUndefined;
  return {slope, mean(y) - slope * mean(x), s.yy > 0 ? slope * s.xy / s.yy : kUndefined};
}

double pearson(std::span<const double> x, std::span<const double> y) {
  const Spread s = spread(x, y);
  const double scale = std::sqrt(s.xx) * std::sqrt(s.yy);
  return scale > 0 ? s.xy / scale : kUndefined;
}

std::vector<Decile> deciles(std::span<const double> loss_first, std::span<const double> loss_full) {
  check_pairs(loss_first, loss_full);
  std::vector<std::size_t> order(loss_first.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return loss_first[a] < loss_first[b]; });
  std::vector<Decile> all;
  for (std::size_t k = 0; k < 10; ++k) {
    Mean first, full;
    const std::size_t begin = k * order.size() / 10, end = (k + 1) * order.size() / 10;
    for (std::size_t i = begin; i < end; ++i) {
      first.add(loss_first[order[i]]);
      full.add(loss_full[order[i]]);
    }
    all.push_back({static_cast<std::int64_t>(end - begin), first.value(), full.value()});
  }
  return all;
}

}  // namespace grt
