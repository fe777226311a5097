// Seconds that something takes.
#pragma once

#include <chrono>

namespace grt {

using Clock = std::chrono::steady_clock;

template <class F>
double seconds_of(F&& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace grt
