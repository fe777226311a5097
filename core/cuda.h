// The CUDA backend, in a library of its own that is opened when it is asked for: libgrt_cuda.so.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"

namespace grt {

// The library is looked for beside the program, in the library directory beside that, and where the system looks;
// GRT_CUDA_LIBRARY, if set, names its file instead. Throws Error.
std::unique_ptr<Device> open_cuda(int ordinal);

// Why open_cuda() cannot work here, or "". Without a driver nothing is opened to find out.
std::string cuda_unavailable();

}  // namespace grt
