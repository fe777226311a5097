// What a run will take in memory, found by rehearsing it on a device that allocates nothing (ops/plan.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "models/model.h"

namespace grt {

// What a GPU must have free beside the tensors: code that is loaded when it first runs (kernels, cuBLASLt, cuDNN: some
// hundred MB), cuBLASLt's workspace of 32 MiB, NCCL's buffers.
inline constexpr std::int64_t kGpuReserve = 1'000'000'000;

struct MemoryPlan {
  std::int64_t weights, gradients, moments;  // bytes
  std::map<int, std::int64_t> activations;   // by depth: the peak of a forward and backward pass, beyond the above
  std::int64_t teacher = 0;                  // its weights; its pass is part of the activations
  std::int64_t held = 0;  // what is kept of held weights (Kernels::keeps); fewer panels where Eigen multiplies
  // On a GPU: kGpuReserve, and as graphs keep the memory of training to themselves, that of a validation or a save.
  std::int64_t reserve = 0;
  std::int64_t total() const;  // with the deepest pass
};

struct MemoryNeeds {
  Json model;
  DType dtype;
  std::int64_t batch_size;
  std::vector<int> depths;
  bool recompute;
  std::string trained_prefix = {};  // of the names of the weights that are trained
  Json teacher = nullptr;           // the configuration of a model to learn from
  int moment_shares = 1;            // ranks that share the moments
  Keeps keeps = Keeps::nothing;     // of the device where it will run, under a Hold (ops/hold.h)
  bool gpu = false;                 // it is a GPU
};

MemoryPlan plan_memory(const MemoryNeeds& needs);
std::string describe(const MemoryPlan& plan);  // a small table, several lines

// Throws Error with needed and available bytes and the largest batch size that fits, unless the plan fits.
void check_fits(const MemoryPlan& plan, const MemoryNeeds& needs, std::int64_t available);

std::string human_bytes(double bytes);  // "1.23 GB"

}  // namespace grt
