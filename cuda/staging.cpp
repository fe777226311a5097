#include "cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "cuda/cuda.h"

namespace grt::cuda {

Staging::~Staging() {
  for (const Slot& slot : slots_) {
    if (slot.read) cudaEventDestroy(slot.read);
    if (slot.memory) cudaFreeHost(slot.memory);
  }
}

Staging::Slot& Staging::free_slot() {
  Slot& slot = slots_[next_++ % kSlots];
  if (slot.read) {
    cuda_check(cudaEventSynchronize(slot.read), "waiting for an earlier copy");
  } else {
    if (!slot.memory) cuda_check(cudaMallocHost(&slot.memory, kSlotBytes), "taking pinned memory");
    cuda_check(cudaEventCreateWithFlags(&slot.read, cudaEventDisableTiming), "making an event");
  }
  return slot;
}

void Staging::copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  for (std::size_t done = 0; done < bytes; done += kSlotBytes) {
    const std::size_t part = std::min(kSlotBytes, bytes - done);
    const Slot& slot = free_slot();
    std::memcpy(slot.memory, static_cast<const char*>(from) + done, part);
    cuda_check(cudaMemcpyAsync(static_cast<char*>(to) + done, slot.memory, part, cudaMemcpyDefault, stream), "copying");
    cuda_check(cudaEventRecord(slot.read, stream), "recording an event");
  }
}

}  // namespace grt::cuda
