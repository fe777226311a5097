#include "cuda/emu/sdpa.h"

#include "core/error.h"

namespace grt {

std::function<std::unique_ptr<cuda::Sdpa>(cudaStream_t)> emu::sdpa;

std::unique_ptr<cuda::Sdpa> cuda::open_sdpa(cudaStream_t stream) {
  check(emu::sdpa != nullptr, "the emulator has no cuDNN");
  return emu::sdpa(stream);
}

}  // namespace grt
