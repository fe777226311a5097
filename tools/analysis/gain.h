// The gain of a map at a point: by how much the small change that grows most grows, the largest singular value of the
// Jacobian. It bounds what one step can do; the rate at which repeated steps converge is another number, the ratio of
// successive updates (trajectory.h), which a large gain does not contradict.
#pragma once

#include <functional>

#include "autograd/tape.h"
#include "core/philox.h"

namespace grt {

using Map = std::function<Var(const Var& x)>;  // to a value of the same shape; recorded on the tape in force

struct GainOptions {
  double tolerance = 1e-4;  // stop when an iteration raises the value by less than this part of it
  int most_iterations = 40;
  NoiseKey start = {1337, 0, 0x6761696e};  // "gain": names the random direction to begin with
};

struct Gain {
  double value;  // never above the true one but by rounding
  int iterations;
};

// Power iteration on J^T J: J^T u is a vector-Jacobian product by the tape, J v a central difference of step 6e-6 |x|,
// whose error in f64 is far below the tolerance. `at` is f64.
Gain largest_gain(const Map& map, const Tensor& at, const GainOptions& options = {});

}  // namespace grt
