// Builds tensors, runs operations, and catches an error: all across the border between a library compiled for this CPU
// and a program compiled for any.
#include <array>
#include <cstdio>

#include "autograd/tape.h"
#include "core/error.h"
#include "ops/ops.h"

int main() {
  const auto device = grt::open_cpu();
  const std::array<float, 6> x_values = {1, 2, 3, 4, 5, 6};
  const std::array<float, 3> w_values = {1, 10, 100};
  const grt::Var x = grt::Tensor::from<float>({2, 3}, x_values, *device);
  const grt::Var w = grt::Tensor::from<float>({1, 3}, w_values, *device);

  const grt::Tensor y = grt::linear(x, w).value();  // x w^T
  device->sync();
  if (y.data<float>()[0] != 321 || y.data<float>()[1] != 654) {
    std::printf("linear gave %g and %g, not 321 and 654\n", y.data<float>()[0], y.data<float>()[1]);
    return 1;
  }
  try {
    grt::linear(w, grt::silu(y));
  } catch (const grt::Error& error) {
    std::printf("the operations of the installed library work; an error reads: %s\n", error.what());
    return 0;
  }
  std::printf("linear took shapes that do not fit\n");
  return 1;
}
