// Mistakes that kernels and their callers make, each in a wrong and in a right form: what the tests of kernels rely on
// is that the emulator, or a sanitizer, sees the wrong ones and is silent about the right.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/modes.h"

namespace grt::test {

struct Fault {
  std::string name;
  // Is the result what it should be?
  std::function<bool(bool right)> run;
  // In which build what must be said of it; "" where it may pass, "wrong" where the result shows it.
  std::string plain, address, thread;
  Mode mode = {};
};

std::vector<Fault> faults();

}  // namespace grt::test
