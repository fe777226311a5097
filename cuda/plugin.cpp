// What the library that is opened at run time shows (core/cuda.cpp looks for it): which interface it was built for, why
// it cannot be used, how to open a device, how many there are, and a device's stream.
#include "cuda/device.h"

extern "C" {

[[gnu::visibility("default")]] const char* grt_cuda_interface() { return GRT_INTERFACE; }

[[gnu::visibility("default")]] void grt_cuda_unavailable(std::string* reason) { *reason = grt::cuda::unavailable(); }

[[gnu::visibility("default")]] grt::Device* grt_cuda_open(int ordinal, grt::DType products, bool keep_blocks) {
  return grt::cuda::open(ordinal, products, keep_blocks).release();
}

[[gnu::visibility("default")]] int grt_cuda_devices() { return grt::cuda::devices(); }

[[gnu::visibility("default")]] void* grt_cuda_stream(grt::Device* device) { return grt::cuda::stream_of(*device); }
}
