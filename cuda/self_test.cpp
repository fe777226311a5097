#include "cuda/self_test.h"

#include <array>

#include "cuda/cuda.h"

namespace grt::cuda {
namespace {

constexpr int kOldest = 8;  // bf16 on tensor cores and asynchronous copies came with compute capability 8.0

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking for a device's properties");
  return properties;
}

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

std::string too_old(int ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  if (properties.major >= kOldest) return {};
  return fmt::format("cuda:{} ({}) is of compute capability {}.{}, the CUDA backend needs {}.0 or later", ordinal,
                     properties.name, properties.major, properties.minor, kOldest);
}

void self_test(Device& device, int ordinal) {
  try {
    run(device);
  } catch (const Error& e) {
    const cudaDeviceProp properties = properties_of(ordinal);
    fail("{} ({}, compute capability {}.{}) does not work with this build, which is for {}: {}", device.name(),
         properties.name, properties.major, properties.minor, GRT_CUDA_ARCHITECTURES, e.what());
  }
}

}  // namespace grt::cuda
