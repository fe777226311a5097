// Compares recorded derivatives with central differences, in f64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace grt {

struct GradReport {
  double worst = 0;   // largest relative error over all variables and directions
  std::string where;  // "weight, element 7"
};

struct Checked {
  std::string name;
  Var var;  // f64, wants a gradient; f() reads its memory
};

// f() returns any shape. It is projected on random weights, never summed: a sum hides errors that cancel over a row
// (the sum of a softmax has no gradient at all). Variables of up to 64 elements are checked element by element, larger
// ones along 4 random directions, by five-point differences. The error is relative to the larger of the two derivatives
// and 1e-5, below which differences are rounding.
GradReport gradcheck(const std::function<Var()>& f, const std::vector<Checked>& variables, std::uint64_t seed = 1);

}  // namespace grt
