// The CUDA backend, in a library of its own that is opened when it is asked for: libgrt_cuda.so.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"

namespace grt {

// `products`: as for open_cpu (core/device.h). Throws Error.
std::unique_ptr<Device> open_cuda(int ordinal, DType products = DType::f32);

// Why open_cuda() cannot work here, or "". Without a driver nothing is opened to find out.
std::string cuda_unavailable();

}  // namespace grt
