#include "train/device.h"

#include <charconv>
#include <string_view>

#include "core/cuda.h"
#include "core/threads.h"

namespace grt {
namespace {

constexpr std::string_view kCuda = "cuda";

// N of cuda:N, any for cuda; nothing for another word.
constexpr int kAny = -1;
std::optional<int> ordinal_of(std::string_view device) {
  if (device == kCuda) return kAny;
  if (!device.starts_with("cuda:")) return {};
  const std::string_view digits = device.substr(kCuda.size() + 1);
  int n = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (error != std::errc() || end != digits.data() + digits.size() || n < 0) return {};
  return n;
}

// The GPU that is a rank's own, unless there are fewer than ranks on its machine.
int own_gpu(const Comm& comm) { return comm.local_rank() % cuda_devices(); }

// Why these ranks cannot compute on GPUs of their own, or "": the same for all.
std::string no_gpus(Comm& comm) {
  std::string reason = cuda_unavailable();
  if (comm.size() == 1) return reason;
  if (reason.empty()) reason = nccl_unavailable();
  const std::vector<std::int64_t> without = comm.gather<std::int64_t>(reason.empty() ? 0 : 1);
  for (std::size_t rank = 0; rank < without.size() && reason.empty(); ++rank)
    if (without[rank]) reason = fmt::format("rank {} has none", rank);
  return reason;
}

std::unique_ptr<Device> open_gpu(const std::string& flag, int ordinal, DType products, bool graphs) {
  try {
    std::unique_ptr<Device> device = open_cuda(ordinal, products);
    device->use_graphs(graphs);
    return device;
  } catch (const Error& e) {
    fail("--device {}: {}", flag, e.what());
  }
}

}  // namespace

std::unique_ptr<Device> DeviceConfig::open(Comm& comm, std::string* why_cpu) const {
  const std::optional<int> ordinal = ordinal_of(device);
  check(device == "auto" || device == "cpu" || ordinal, "--device: must be auto, cpu, cuda or cuda:N, not \"{}\"",
        device);
  check(dtype == "f32" || dtype == "bf16" || dtype == "f64", "--dtype: must be f32, bf16 or f64, not \"{}\"", dtype);
  const DType products = dtype == "bf16" ? DType::bf16 : DType::f32;
  if (threads) {
    check(1 <= *threads && *threads <= 1024, "--threads: must be 1..1024, not {}", *threads);
    set_thread_count(*threads);
  } else if (comm.size() > 1) {
    set_thread_count(threads_per_rank(comm));
  }
  if (ordinal) {
    check(!cpu_alone, "--device {}: what this program does is done on the CPU alone", device);
    check(dtype != "f64", "--dtype: f64 is computed on the CPU alone, not with --device {}", device);
    const std::string reason = cuda_unavailable();
    check(reason.empty(), "--device {}: {}", device, reason);
    return open_gpu(device, *ordinal == kAny ? own_gpu(comm) : *ordinal, products, !no_graphs);
  }
  std::string reason;
  if (device == "auto" && !cpu_alone) {
    reason = dtype == "f64" ? "f64 is computed on the CPU alone" : no_gpus(comm);
    if (reason.empty()) return open_gpu(device, own_gpu(comm), products, !no_graphs);
  }
  if (why_cpu) *why_cpu = reason;
  return open_cpu(products);
}

bool on_gpu(const Device& device) { return device.name().starts_with(kCuda); }

std::unique_ptr<Comm> ranks_on(Device& device, Comm& comm) {
  if (comm.size() == 1 || !on_gpu(device)) return nullptr;
  return open_nccl(comm, device);
}

DType DeviceConfig::type() const { return dtype == "f64" ? DType::f64 : DType::f32; }

std::unique_ptr<Device> DeviceConfig::open_and_tell(Comm& comm) const {
  std::string why_cpu;
  std::unique_ptr<Device> opened = open(comm, &why_cpu);
  if (comm.rank() > 0) return opened;
  if (!why_cpu.empty()) fmt::print(stderr, "note: --device {} takes the CPU: {}\n", device, why_cpu);
  if (dtype == "bf16" && !on_gpu(*opened) && cpu_level() != "avx512bf16")
    fmt::print(stderr, "note: --dtype bf16 is emulated at the level {}, no faster than f32\n", cpu_level());
  return opened;
}

DType packed_type(const std::string& weights) {
  if (weights == "f32") return DType::packed_f32;
  if (weights == "bf16") return DType::packed_bf16;
  check(weights == "int8", "--weights: must be f32, bf16 or int8, not \"{}\"", weights);
  return DType::packed_int8;
}

std::optional<DType> WeightsConfig::packed(const DeviceConfig& config) const {
  const DType packed = packed_type(weights);
  if (config.dtype == "f32") return packed;
  check(packed == DType::packed_f32, "--weights: {} goes with --dtype f32, not {}", weights, config.dtype);
  return {};
}

}  // namespace grt
