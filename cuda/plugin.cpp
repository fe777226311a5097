// What the library that is opened at run time shows (core/cuda.cpp looks for it): which interface it was built for, why
// it cannot be used, and how to open a device.
#include "cuda/device.h"

extern "C" {

[[gnu::visibility("default")]] const char* grt_cuda_interface() { return GRT_INTERFACE; }

[[gnu::visibility("default")]] void grt_cuda_unavailable(std::string* reason) { *reason = grt::cuda::unavailable(); }

[[gnu::visibility("default")]] grt::Device* grt_cuda_open(int ordinal, grt::DType products) {
  return grt::cuda::open(ordinal, products).release();
}
}
