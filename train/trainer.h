// The training loop: batches in, checkpoints and a log out.
//
// A step is `grad_accum` micro-batches. Data, depth and noise of a micro-batch are pure functions of (seed, step, index
// of the micro-batch), so a resumed run repeats an uninterrupted one bit for bit, and nothing depends on who computes
// it: ranks share the micro-batches of a step, and the batches of a validation. Each rank has the whole model and runs
// the whole loop with the same state; rank 0 alone writes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm.h"
#include "core/graphs.h"
#include "train/config.h"
#include "train/evaluate.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/progress.h"
#include "train/signals.h"

namespace grt {

// The depth of a micro-batch: a function of (seed, step, index of the micro-batch over all who compute the step), or
// with --depth-scope step of (seed, step) alone.
int draw_depth(const TrainPlan& plan, std::int64_t step, std::int64_t index);

class Trainer {
 public:
  // `start`: where to go on from (step 0: a fresh run); its flags are stored in each checkpoint. `resume_command` is
  // printed after an interruption. `teacher`, if any, and `comm` must outlive the trainer.
  Trainer(const TrainPlan& plan, LanguageModel& model, TokenData train, std::optional<TokenData> val,
          TrainerState start, std::string resume_command, const LanguageModel* teacher = nullptr, Comm& comm = alone());

  void load_moments(const fs::path& checkpoint) { optimizer_.load(checkpoint); }
  int run();  // the exit code: 0, or 128 + the signal that interrupted; on all ranks the same

 private:
  struct StepStats {
    double loss, grad_norm, depth, lr, flops;  // flops: executed by all micro-batches, forward and backward
  };

  bool leads() const { return comm_.rank() == 0; }  // who writes, and speaks
  int interrupting_signal();                        // that a rank has received, or 0; the same answer on all ranks
  bool step(std::int64_t step, StepStats& stats);   // false: interrupted, nothing changed
  void clear_gradients();
  void micro_batches(std::int64_t step, const std::vector<std::int64_t>& indices, const std::vector<int>& depths);
  void micro_batch(std::int64_t step, std::int64_t index, int depth);
  void load_batch(std::int64_t step, std::int64_t index);
  Var batch_loss(int depth, Tape* tape) const;
  double executed_flops(int depth);
  bool finish_step();  // false: interrupted
  void log_step(const StepStats& stats, double seconds);
  std::optional<EvalResult> evaluate_now(std::vector<int> depths, bool causal_routing);  // none: interrupted
  bool validate();                                                                       // false: interrupted
  void warn_of_collapse(const std::map<int, double>& depth_histogram);
  void save(bool best);
  void check_same_weights();            // on all ranks
  std::string last_checkpoint() const;  // "the last checkpoint is step-00000500", or that there is none
  int interrupted();
  [[noreturn]] void stop_on_bad_gradient(std::int64_t step);
  [[noreturn]] void stop_on_bad_loss(std::int64_t step, std::int64_t index, int depth, double loss);

  TrainPlan plan_;
  LanguageModel& model_;
  const LanguageModel* teacher_;
  Comm& comm_;
  TokenData train_;
  std::optional<TokenData> val_;
  TrainerState state_;
  std::string resume_command_;
  Optimizer optimizer_;
  // What a micro-batch's work reads and writes, and one graph of it for each depth.
  Batch batch_;
  LiveScalar<std::uint64_t> noise_seed_;
  Tensor losses_, share_;  // of each micro-batch of a step, and of the last one done; a micro-batch's share of the step
  Graphs graphs_;
  std::optional<RunLog> log_;  // rank 0's; opened when the run begins: what fails before leaves the earlier log alone
  Progress progress_;
  SignalGuard signals_;
  int interrupted_by_ = 0;
  std::int64_t first_step_, saved_step_;
  std::string last_val_;
  std::map<int, double> flops_;  // per token, by depth
};

}  // namespace grt
