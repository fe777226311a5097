// A GPU as a device: memory and one stream, on which everything is enqueued. Nothing waits but sync(), copies to the
// host, copies from it where more is on its way than Staging holds, and the kernels that return a number.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/device.h"

namespace grt::cuda {

// products: f32 or bf16, as for open_cpu (core/device.h). keep_blocks: whether blocks that are given back wait to be
// taken again. Without, every tensor is an allocation of its own exact size, which tools that check memory want.
std::unique_ptr<Device> open(int ordinal, DType products = DType::f32, bool keep_blocks = true);

// Why no device can be opened, or "".
std::string unavailable();

int devices();                           // how many there are; throws Error
cudaStream_t stream_of(Device& device);  // of one that open() opened

}  // namespace grt::cuda
