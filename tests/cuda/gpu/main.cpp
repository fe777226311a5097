// The case tables of kernels and models on a GPU; without one it says so.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include "core/cuda.h"

int main(int argc, char** argv) {
  if (const std::string reason = grt::cuda_unavailable(); !reason.empty()) {
    fmt::print("skipped: {}\n", reason);
    return 0;
  }
  doctest::Context context(argc, argv);
  context.addFilter("test-case-exclude", "*bit for bit*");  // a GPU's logarithms and sines end in other digits
  return context.run();
}
