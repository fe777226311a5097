// Does this build run on this GPU at all?
#pragma once

#include <string>

#include "core/device.h"

namespace grt::cuda {

// Why a GPU cannot do what the kernels ask, whatever was built, or "".
std::string too_old(int ordinal);

// Runs a kernel and a product and looks at what came. Throws Error that names the GPU, its compute capability and what
// the library was built for.
void self_test(Device& device, int ordinal);

}  // namespace grt::cuda
