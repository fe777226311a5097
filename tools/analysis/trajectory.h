// Where a state goes when a step is repeated: the updates of one token's states h_0, h_1, ..., h_N, and what becomes of
// them. The kinds are those of Geiping et al. 2025, arXiv:2502.05171.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace grt {

using States = std::vector<std::vector<double>>;  // h_0 .. h_N, of one width

// Thresholds of classify(), which looks at the last half of the updates.
inline constexpr double kAtRest = 1e-4;     // update / state: it moves no longer
inline constexpr double kShrinking = 0.98;  // ratio of successive updates, the median
inline constexpr double kReturned = 0.5;    // distance to an earlier state / the largest distance in between
inline constexpr double kStraight = 0.5;    // way from start to end / length of the path

enum class Fate {
  fixed_point,  // the last update is at most kAtRest of the state, or updates shrink by kShrinking or more each step
  orbit,        // else: they do not grow as fast, and the state came back to an earlier one, within kReturned
  slider,       // else: it keeps its direction, straighter than kStraight
  other
};
std::string name_of(Fate fate);

Fate classify(const States& states);  // of at least 9 states

// |h_{r+1} - h_r| / |h_r - h_{r-1}| for r = 1..N-1: below 1 a contraction, by its rate in the limit.
std::vector<double> update_ratios(const States& states);
// Angles between successive updates, in radians: 0 straight on, pi back and forth, theta for a rotation by theta.
std::vector<double> turning_angles(const States& states);

}  // namespace grt
