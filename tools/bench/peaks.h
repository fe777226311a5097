// What a device can do at best, measured at this moment: the rates that a benchmark's shares of the peak refer to.
#pragma once

#include "train/device.h"

namespace grt {

enum class Arithmetic { f32, bf16 };

struct Peak {  // per second
  double flops = 0, bf16_flops = 0, bytes = 0;
  double of(Arithmetic a) const { return a == Arithmetic::f32 ? flops : bf16_flops; }
};

inline bool on_cpu(const Device& device) { return !on_gpu(device); }

// Memory that is passed over as fast as can be: on the CPU plain reads of 256 MiB, beyond any cache; on a GPU a copy
// within its memory, which reads and writes, of as many bytes as keep it busy for a while.
class MemoryProbe {
 public:
  explicit MemoryProbe(Device& device);
  double bytes_per_second(int runs) const;  // of the best run

 private:
  double pass() const;  // bytes per second of one

  Device& device_;
  Tensor memory_;
};

// Raises the rates of arithmetic to those of the best of some runs: on the CPU multiply-adds on registers, in f32 and,
// where it has an instruction for them, of bf16 pairs; on a GPU, as `flops`, products of matrices as it makes them.
void measure_arithmetic(Peak& peak, int runs, Device& device);

}  // namespace grt
