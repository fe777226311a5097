#include "tools/analysis/trajectory.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tools/analysis/statistics.h"

namespace grt {
namespace {

std::vector<double> difference(const std::vector<double>& to, const std::vector<double>& from) {
  std::vector<double> d(to.size());
  std::transform(to.begin(), to.end(), from.begin(), d.begin(), std::minus<>());
  return d;
}

// By which an update is longer than the one before, from state `begin` on: the median over all pairs of updates (Theil
// and Sen's line through their logarithms), since the updates of an orbit need not be equally long.
double typical_ratio(const States& states, std::size_t begin) {
  std::vector<double> logs, slopes;
  for (std::size_t r = begin; r + 1 < states.size(); ++r) {
    logs.push_back(std::log(std::max(distance(states[r + 1], states[r]), std::numeric_limits<double>::min())));
    for (std::size_t back = 1; back < logs.size(); ++back)
      slopes.push_back((logs.back() - logs[logs.size() - 1 - back]) / static_cast<double>(back));
  }
  const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
  std::nth_element(slopes.begin(), middle, slopes.end());
  return std::exp(*middle);
}

// Did the last state come back to one of the last `reach`, from which it had gone away?
bool returned(const States& states, std::size_t reach) {
  double farthest = 0;
  for (std::size_t back = 1; back <= reach; ++back) {
    const double d = distance(states.back(), states[states.size() - 1 - back]);
    if (d <= kReturned * farthest) return true;
    farthest = std::max(farthest, d);
  }
  return false;
}

}  // namespace

std::string name_of(Fate fate) {
  switch (fate) {
    case Fate::fixed_point:
      return "fixed point";
    case Fate::orbit:
      return "orbit";
    case Fate::slider:
      return "slider";
    case Fate::other:
      break;
  }
  return "other";
}

Fate classify(const States& states) {
  check(states.size() >= 9, "a trajectory of {} states is too short to be told apart; 9 are needed", states.size());
  const std::size_t last = states.size() - 1, reach = last / 2, begin = last - reach;
  if (distance(states[last], states[last - 1]) <= kAtRest * norm(states[last])) return Fate::fixed_point;
  const double ratio = typical_ratio(states, begin);
  if (ratio <= kShrinking) return Fate::fixed_point;
  if (ratio < 1 / kShrinking && returned(states, reach)) return Fate::orbit;
  double path = 0;
  for (std::size_t r = begin; r < last; ++r) path += distance(states[r + 1], states[r]);
  return distance(states[last], states[begin]) > kStraight * path ? Fate::slider : Fate::other;
}

std::vector<double> update_ratios(const States& states) {
  std::vector<double> ratios;
  for (std::size_t r = 1; r + 1 < states.size(); ++r)
    ratios.push_back(distance(states[r + 1], states[r]) / distance(states[r], states[r - 1]));
  return ratios;
}

std::vector<double> turning_angles(const States& states) {
  std::vector<double> angles;
  for (std::size_t r = 1; r + 1 < states.size(); ++r)
    angles.push_back(std::acos(cosine(difference(states[r + 1], states[r]), difference(states[r], states[r - 1]))));
  return angles;
}

}  // namespace grt
