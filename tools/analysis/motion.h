// What needs steps by themselves, in f64 and on a few windows: the gain of each step, and where states go when steps
// are repeated far beyond the trained depth.
#pragma once

#include "core/json.h"
#include "tools/analysis/source.h"

namespace grt {

// "gain" of each step 1..R, a mean over the windows; empty for models whose steps cannot be taken by themselves: dense,
// which has none, and mor, whose steps route what the step before left.
std::vector<double> step_gains(const Source& source, const Shown& shown);

// How many of the tokens come to rest, circle, or slide away. Null for models with a weight for each step.
struct Fates {
  Json classification;  // [{"kind", "share"}]
  int steps;
};
Fates classify_tokens(const Source& source, const Shown& shown);

}  // namespace grt
