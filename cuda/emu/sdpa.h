// What stands for cuDNN on the emulator: nothing, unless a test sets it.
#pragma once

#include <functional>

#include "cuda/sdpa.h"

namespace grt::emu {

extern std::function<std::unique_ptr<cuda::Sdpa>(cudaStream_t)> sdpa;

}  // namespace grt::emu
