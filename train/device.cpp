#include "train/device.h"

#include "core/threads.h"

namespace grt {

std::unique_ptr<Device> DeviceConfig::open(Comm& comm) const {
  check(device == "auto" || device == "cpu",
        "--device: must be auto or cpu, not \"{}\" (this build computes on the CPU)", device);
  if (threads) {
    check(1 <= *threads && *threads <= 1024, "--threads: must be 1..1024, not {}", *threads);
    set_thread_count(*threads);
  } else if (comm.size() > 1) {
    set_thread_count(threads_per_rank(comm));
  }
  return open_cpu();
}

DType DeviceConfig::type() const {
  if (dtype == "f32") return DType::f32;
  check(dtype == "f64", "--dtype: the CPU computes in f32 or f64, not \"{}\"", dtype);
  return DType::f64;
}

}  // namespace grt
