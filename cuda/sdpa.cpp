#include "cuda/sdpa.h"

#include "core/error.h"
#include "core/plugin.h"

namespace grt::cuda {

std::unique_ptr<Sdpa> open_sdpa(cudaStream_t stream) {
  const Plugin plugin("cudnn");
  const std::string interface = plugin.function<const char*()>("grt_cudnn_interface")();
  check(interface == GRT_INTERFACE, "libgrt_cudnn.so is of another build than libgrt_cuda.so ({}, not {})", interface,
        GRT_INTERFACE);
  return std::unique_ptr<Sdpa>(plugin.function<Sdpa*(cudaStream_t)>("grt_cudnn_open")(stream));
}

}  // namespace grt::cuda
