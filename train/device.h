// The --device, --dtype, --threads and --no-graphs flags that every binary has, and --weights of those that only infer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/comm.h"
#include "core/device.h"
#include "core/dtype.h"

namespace grt {

struct DeviceConfig {
  std::string device = "auto";
  std::string dtype = "f32";
  std::optional<int> threads = {};
  bool cpu_alone = false;  // no flag: the program's work is done on the CPU
  bool no_graphs = false;

  template <class V>
  void fields(V&& v) {
    v("device", device, "auto (a GPU where one can be used; of several ranks each its own), cpu, cuda or cuda:N");
    v("dtype", dtype, "f32; bf16: products of bf16 factors, all else f32; on the CPU alone f64: for reference");
    v("threads", threads, "CPU threads (default: the CPUs this process may use, shared with the other ranks on them)");
    v("no-graphs", no_graphs, "on a GPU: do work that comes again part by part each time, not as a graph made once");
  }

  // Of several ranks on a machine each takes a GPU of its own for auto and cuda, or all of them the CPU for auto if one
  // has none. Also sets the number of threads. Throws Error naming the flag. `why_cpu`, if given, becomes why auto took
  // the CPU. Called by all ranks.
  std::unique_ptr<Device> open(Comm& comm = alone(), std::string* why_cpu = nullptr) const;
  // open() for a program: rank 0 says on stderr, in a line each, that auto took the CPU and why, and that bf16 is
  // emulated there.
  std::unique_ptr<Device> open_and_tell(Comm& comm = alone()) const;
  DType type() const;  // of tensors; bf16 is a matter of products alone
};

bool on_gpu(const Device& device);

// The ranks of `comm` for tensors on `device`: over NCCL if that is a GPU and there are several; else null, and `comm`
// itself serves. Called by all ranks. Throws Error.
std::unique_ptr<Comm> ranks_on(Device& device, Comm& comm);

// Throws Error naming the flag.
DType packed_type(const std::string& weights);

struct WeightsConfig {
  std::string weights = "f32";

  template <class V>
  void fields(V&& v) {
    v("weights", weights,
      "how the matrices of products are kept: f32, bf16 (rounded: half the memory) or int8 (rounded, with a scale for "
      "32 of them: 28 % of it)");
  }

  // What a model is to be loaded with. Throws Error naming the flag.
  std::optional<DType> packed(const DeviceConfig& config) const;
};

}  // namespace grt
