#include "tools/bench/peaks.h"

#include <algorithm>

#include "ops/cpu/peak.h"
#include "ops/kernels.h"
#include "tools/bench/clock.h"

namespace grt {
namespace {

constexpr double kWhile = 1e-3;  // seconds, against which a launch and a look at the clock are short

double product_flops_per_second(int runs, Device& device) {
  double best = 0;
  for (std::int64_t n = 64; n <= 16384; n *= 2) {
    const Tensor a = Tensor::empty({n, n}, DType::f32, device), y = Tensor::like(a);
    device.kernels().truncated_normal(a, 1, {1, 0, 4}, 0);  // of zeros a GPU is faster
    const auto multiply = [&] {
      device.kernels().matmul({y}, {}, {a}, {a, true}, {});
      device.sync();
    };
    multiply();  // what is found out once about a product of this size
    double least = seconds_of(multiply);
    for (int i = 1; i < runs; ++i) least = std::min(least, seconds_of(multiply));
    best = 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / least;
    if (least >= kWhile) break;
  }
  device.release_idle();
  return best;
}

}  // namespace

MemoryProbe::MemoryProbe(Device& device) : device_(device) {
  const auto take = [&](std::int64_t floats) { memory_ = Tensor::zeros({floats}, DType::f32, device); };
  if (on_cpu(device)) take(std::int64_t{1} << 26);
  for (std::int64_t floats = 1 << 22; !on_cpu(device) && floats <= std::int64_t{1} << 30; floats *= 2) {
    take(floats);
    if (static_cast<double>(memory_.bytes()) / bytes_per_second(2) >= kWhile) break;
  }
}

double MemoryProbe::pass() const {
  double bytes = 0;
  const double seconds = seconds_of([&] {
    if (on_cpu(device_)) {
      bytes = cpu::run_reads(memory_);
      return;
    }
    const std::int64_t half = memory_.numel() / 2;
    device_.copy(memory_.range(half, {half}).raw(), memory_.raw(), memory_.bytes() / 2);
    device_.sync();
    bytes = static_cast<double>(memory_.bytes());
  });
  return bytes / seconds;
}

double MemoryProbe::bytes_per_second(int runs) const {
  double best = 0;
  for (int i = 0; i < runs; ++i) best = std::max(best, pass());
  return best;
}

void measure_arithmetic(Peak& peak, int runs, Device& device) {
  if (!on_cpu(device)) {
    peak.flops = std::max(peak.flops, product_flops_per_second(runs, device));
    return;
  }
  const auto raise = [](double& rate, double (*work)()) {
    double flops = 0;
    const double seconds = seconds_of([&] { flops = work(); });
    rate = std::max(rate, flops / seconds);
  };
  for (int i = 0; i < runs; ++i) {
    raise(peak.flops, cpu::run_multiply_adds);
    raise(peak.bf16_flops, cpu::run_bf16_multiply_adds);
  }
}

}  // namespace grt
