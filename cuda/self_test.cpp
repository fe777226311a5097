#include "cuda/self_test.h"

#include <array>

#include "cuda/cuda.h"

namespace grt::cuda {
namespace {

// (1 2; 3 4) (1 2; 3 4) + (1 2; 3 4)
void run(Device& device) {
  const std::array<float, 4> values{1, 2, 3, 4}, expected{8, 12, 18, 26};
  std::array<float, 4> got{};
  const Tensor x = Tensor::from<float>({2, 2}, values, device), y = Tensor::like(x);
  Kernels& k = device.kernels();
  k.copy({y}, x);
  k.matmul({y, true}, {}, {x}, {x}, {});
  device.copy(got.data(), y.raw(), y.bytes());
  device.sync();
  check(got == expected, "a product of two small matrices is wrong");
}

}  // namespace

void self_test(Device& device, int ordinal) {
  try {
    run(device);
  } catch (const Error& e) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking for its properties");
    fail("{} ({}, compute capability {}.{}) does not work with this build, which is for {}: {}", device.name(),
         properties.name, properties.major, properties.minor, GRT_CUDA_ARCHITECTURES, e.what());
  }
}

}  // namespace grt::cuda
