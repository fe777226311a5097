// Whole training steps at full depth with noise: forward, backward, gradient norm, clipping, AdamW. For being timed.
#pragma once

#include <memory>

#include "core/graphs.h"
#include "models/model.h"
#include "train/optimizer.h"

namespace grt {

struct StepShape {
  std::int64_t batch_size = 1;
  std::int64_t context_length = 0;  // 0: the model's
  bool recompute = false;
};

class TrainingStep {
 public:
  // `model`: a preset, or a configuration's file.
  TrainingStep(const std::string& model, const StepShape& shape, Device& device);
  // `json`: a configuration; `where` names it in errors.
  TrainingStep(Json json, const std::string& where, const StepShape& shape, Device& device);

  double run();  // one step; the seconds it took

  const LanguageModel& model() const { return *model_; }
  double tokens() const { return static_cast<double>(inputs_.numel()); }
  double state_bytes() const { return 4 * static_cast<double>(model_->params().values().bytes()); }
  double activation_bytes() const { return activations_; }  // of the largest step so far, gradients aside
  double peak_bytes() const;                                // so far: of the process on the CPU, of tensors on a GPU
  double executed_flops() const { return tokens() * flops_per_token_; }
  // The convention of nanoGPT and PaLM (6 N + 12 L d T for each token, attention uncut), for comparisons with others.
  double convention_flops() const;

 private:
  static Params& with_gradients(Params& params);

  Device& device_;
  std::unique_ptr<LanguageModel> model_;
  Optimizer optimizer_;
  bool recompute_;
  Tensor inputs_, targets_, seed_;
  LiveScalar<std::uint64_t> noise_seed_;
  Graphs graphs_;
  std::int64_t step_ = 0;
  double flops_per_token_ = 0, activations_ = 0, peak_ = 0;
};

// A step for each line that arrives on stdin; a JSON line on stdout before the first and after each. What is timed in a
// process of its own has a peak memory of its own.
void train_on_request(const std::string& model, const StepShape& shape, Device& device);

}  // namespace grt
