// The CUDA backend, in libraries of its own that are opened when they are asked for: libgrt_cuda.so, and libgrt_nccl.so
// for ranks with a GPU each.
#pragma once

#include <memory>
#include <string>

#include "core/comm.h"
#include "core/device.h"

namespace grt {

// `products`: as for open_cpu (core/device.h). Throws Error.
std::unique_ptr<Device> open_cuda(int ordinal, DType products = DType::f32);

// Why open_cuda() cannot work here, or "". Without a driver nothing is opened to find out.
std::string cuda_unavailable();

int cuda_devices();  // how many open_cuda() could open; throws Error

// `ranks` again for tensors on `device`, which open_cuda() opened: those go over NCCL, in the order of the device's
// stream, everything else over `ranks`. Both must outlive the result. Called by all ranks; throws Error, also if two of
// them have the same GPU.
std::unique_ptr<Comm> open_nccl(Comm& ranks, Device& device);

// Why open_nccl() cannot work in this installation, or "".
std::string nccl_unavailable();

}  // namespace grt
