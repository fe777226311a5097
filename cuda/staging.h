// Host memory on its way to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace grt::cuda {

// Copies through pinned memory of its own, so that what was to be copied has been read when the call returns. From
// pageable memory CUDA reads at once or when the stream comes to it, depending on the system.
class Staging {
 public:
  Staging() = default;
  ~Staging();  // when the stream is done
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Enqueued on `stream`, always the same; waits only where so much is on its way that no slot is free. Throws Error.
  void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

  static constexpr std::size_t kSlotBytes = 64 << 10, kSlots = 16;

 private:
  struct Slot {
    void* memory = nullptr;
    cudaEvent_t read = nullptr;  // the device has read it
  };
  Slot& free_slot();

  std::array<Slot, kSlots> slots_{};  // taken in turn
  std::size_t next_ = 0;
};

}  // namespace grt::cuda
