// The speed of training steps, of several models and beside PyTorch: each in a process of its own, all taking turns.
#pragma once

#include "tools/bench/models.h"
#include "tools/bench/report.h"
#include "tools/bench/training_step.h"

namespace grt {

struct TrainBench {
  std::vector<std::string> models;
  StepShape shape;
  int rounds;
  std::vector<std::string> dtypes;  // f32, bf16: of products
  std::vector<std::string> torch;   // settings of PyTorch to compare with: "installed", "tuned", "compiled"
  std::string python;               // with the module torch
  bool alone;                       // one process at a time, started for each of its turns: less memory, more time
};

// Throws Error naming --torch, or --python if that is to be started and cannot be.
void check_torch(const std::vector<std::string>& settings, const std::string& python);

// `device`: where all compute, in processes of their own.
void bench_train(const TrainBench& bench, const Device& device, Report& report);

}  // namespace grt
