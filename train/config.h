// The flags of `train`, and the numbers they amount to once the defaults that depend on each other are filled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "core/flags.h"
#include "models/depth.h"
#include "models/flags.h"
#include "models/model.h"
#include "train/data.h"
#include "train/device.h"
#include "train/schedule.h"

namespace grt {

struct TrainConfig {
  std::string model, data_train, data_val, out, init_from, init_map, teacher, recipe, config;
  std::optional<std::int64_t> steps, warmup_steps, lr_decay_steps, eval_every, save_every;
  std::int64_t batch_size = 8, grad_accum = 1, eval_batches = 0;
  double lr = 6e-4;
  std::optional<double> min_lr, peak_tflops, distill_weight, distill_temperature;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, grad_clip = 1.0;
  int keep = 2;
  std::uint64_t seed = 1337;
  std::optional<std::string> depth_sampler;
  std::optional<int> depth;
  std::string depth_scope = "micro", data_order = "random", eval_depths = "all", stage = "all";
  bool recompute = false, shard_optimizer = false, resume = false, overwrite = false, print_config = false;

  template <class V>
  void fields(V&& v) {
    v("model", model,
      "a preset (list: inspect --presets) or a config.json; may be left out with --init-from or --resume");
    v("data-train", data_train, "token file, directory of shards or glob to train on");
    v("data-val", data_val, "token file, directory of shards or glob to validate on; none: no validation");
    v("out", out, "directory of the run: checkpoints and logs");
    v("steps", steps, "optimizer steps (no default, but for --recipe)");
    v("batch-size", batch_size, "sequences of a micro-batch");
    v("grad-accum", grad_accum, "micro-batches of a step");
    v("lr", lr, "peak learning rate");
    v("min-lr", min_lr, "learning rate after the decay (default: lr/10)");
    v("warmup-steps", warmup_steps, "steps of linear warm-up (default: steps/10)");
    v("lr-decay-steps", lr_decay_steps, "step at which min-lr is reached, by half a cosine (default: steps)");
    v("weight-decay", weight_decay, "AdamW's, on tensors with two or more dimensions");
    v("beta1", beta1, "AdamW's decay of the first moment");
    v("beta2", beta2, "AdamW's decay of the second moment");
    v("eps", eps, "AdamW's epsilon");
    v("grad-clip", grad_clip, "largest L2 norm of the whole gradient; 0: off");
    v("eval-every", eval_every, "steps between validations (default: steps/10)");
    v("eval-batches", eval_batches, "batches of a validation; 0: the full split");
    v("eval-depths", eval_depths, "exits to validate: all (that are trained for), full, or a list such as 0,1,6");
    v("save-every", save_every, "steps between checkpoints (default: eval-every)");
    v("keep", keep, "checkpoints to keep; the best is spared");
    v("resume", resume, "go on from OUT/latest");
    v("overwrite", overwrite, "remove an earlier run in OUT");
    v("init-from", init_from, "checkpoint whose weights to start from; the optimizer starts anew");
    v("init-map", init_map,
      "middle: --init-from is a dense model, whose first, middle and last blocks become prelude, core and coda");
    v("teacher", teacher, "checkpoint whose next-token distribution the model learns from, beside the text");
    v("distill-weight", distill_weight, "w of (1 - w) cross-entropy + w t^2 KL(teacher || model) (default: 0.5)");
    v("distill-temperature", distill_temperature, "t that both logits are divided by in the KL (default: 1)");
    v("stage", stage, "what to train: all, or gate: ouro's exit gate by itself, the model of --init-from frozen");
    v("seed", seed, "of initial weights, data order, depths and noise");
    v("depth-sampler", depth_sampler,
      "training depth: fixed, uniform in r_min..depth, or poisson, of mean depth (default: the model's)");
    v("depth", depth, "largest training depth; its mean for poisson (default: R)");
    v("depth-scope", depth_scope, "draw a depth for each micro-batch (micro) or for each step (step)");
    v("data-order", data_order, "random offsets, or sequential windows");
    v("recompute", recompute, "keep one state per recurrence and compute the rest again in the backward pass");
    v("shard-optimizer", shard_optimizer,
      "over several ranks: each keeps the moments of its share of the weights alone");
    v("peak-tflops", peak_tflops, "the machine's peak, for mfu in the log (default: mfu is null)");
    v("recipe", recipe,
      "paper: bf16, context 1024, batch 8, accumulation 60, 20000 steps, 2000 of warm-up, lr 6e-4 to 6e-5");
    v("config", config, "JSON file of flags: {\"lr\": 1e-3}; the command line wins");
    v("print-config", print_config, "print the resolved flags and model as JSON and end");
  }
};

// Everything a run needs to know, checked.
struct TrainPlan {
  TrainConfig config;
  std::int64_t steps, eval_every, save_every;
  Schedule schedule;
  DepthRule depth;
  bool depth_per_step;
  std::string trained_prefix;  // of the names of the weights to train; empty: all
  TrainingOrder order;
  std::vector<int> eval_depths;
  Distillation distillation;  // where there is a teacher
};

// Applies --recipe where a flag was not given.
void apply_recipe(TrainConfig& config, DeviceConfig& device, ModelFlags& model, const Flags& flags);

// Throws Error naming the flag whose value cannot be used.
TrainPlan resolve(const TrainConfig& config, const LanguageModel& model);

// "all", "full" or a list of depths, ascending and each once. Throws Error naming `flag`.
std::vector<int> parse_depths(const std::string& text, const LanguageModel& model, const std::string& flag);

namespace detail {
template <class T>
void take_value(const Json& from, T& value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool fits = from.is_number_unsigned()
                          ? std::in_range<T>(from.get<std::uint64_t>())
                          : from.is_number_integer() && std::in_range<T>(from.get<std::int64_t>());
    if (!fits) throw Json::type_error::create(302, "not a whole number of this type", &from);
  }
  value = from.get<T>();
}
template <class T>
void take_value(const Json& from, std::optional<T>& value) {
  if (from.is_null()) return value.reset();
  take_value(from, value.emplace());
}
}  // namespace detail

// Takes over the values a run was `saved` with, in the file `where`, for the flags that are not given now. Returns a
// line for each flag that is given with another value: "--lr: 0.001 replaces 0.0006".
template <class Config>
std::vector<std::string> restore_values(Config& config, const Json& saved, const std::string& where,
                                        const Flags& flags) {
  std::vector<std::string> changes;
  const Json now = values_of(config);
  config.fields([&](const char* name, auto& value, const char*) {
    const auto it = saved.find(name);
    if (it == saved.end()) return;
    if (!flags.given(name)) {
      try {
        detail::take_value(*it, value);
      } catch (const Json::exception&) {
        fail("{}: flags.{} has the value {}, which is none of its type", where, name, to_text(*it).substr(0, 100));
      }
    } else if (now[name] != *it) {
      changes.push_back(fmt::format("--{}: {} replaces {}", name, to_text(now[name]), to_text(*it)));
    }
  });
  return changes;
}

}  // namespace grt
