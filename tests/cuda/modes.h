// The ways in which emulated CUDA is run: the order of threads, when streams work, what watches the memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/emu/emu.h"

namespace grt::test {

struct Mode {
  emu::Order order = emu::Order::forward;
  emu::Streams streams = emu::Streams::eager;
  bool guard = false;        // pages without access behind every allocation, and no access for the host
  bool keep_blocks = false;  // of the memory that is given back
  std::string name() const;
};

// What a bug would show itself in: each order, each kind of stream, and guard pages. A sanitizer, which finds by itself
// what the guard finds, sees most in any one of them.
std::vector<Mode> modes();

// Sets the emulator up and opens a device, while this object lives.
class Emulated {
 public:
  explicit Emulated(const Mode& mode, DType products = DType::f32);
  ~Emulated();
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;
  Device& device() { return *device_; }

 private:
  emu::Config before_;
  std::unique_ptr<Device> device_;
};

}  // namespace grt::test
