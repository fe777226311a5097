#include "train/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace grt {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000'000, kMostSequences = 1 << 20;

void in_range(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  check(low <= value && value <= high, "--{}: must be {}..{}, not {}", flag, low, high, value);
}
void within(const char* flag, double value, double low, double high) {
  check(std::isfinite(value) && low <= value && value <= high, "--{}: must be {}..{}, not {}", flag, low, high, value);
}

std::int64_t tenth(std::int64_t steps) { return std::max<std::int64_t>(1, steps / 10); }

// Of the names of the weights that --stage trains.
std::string trained_prefix(const TrainConfig& c, const LanguageModel& model) {
  if (c.stage == "all") return "";
  check(c.stage == "gate", "--stage: must be all or gate, not \"{}\"", c.stage);
  check(model.config().architecture == "ouro",
        "--stage gate: is for ouro, the one architecture with an exit gate; this is {}", model.config().architecture);
  check(!c.init_from.empty() || c.resume,
        "--stage gate: trains the gate of a trained model, so --init-from must name one");
  return "exit_gate.";
}

Distillation distillation_of(const TrainConfig& c, const LanguageModel& model) {
  if (c.teacher.empty()) {
    check(!c.distill_weight && !c.distill_temperature, "--distill-{}: needs a --teacher",
          c.distill_weight ? "weight" : "temperature");
    return {};
  }
  check(model.config().architecture != "ouro",
        "--teacher: ouro weights the losses of its exits token by token and cannot learn from one");
  const Distillation rule{c.distill_weight.value_or(0.5), c.distill_temperature.value_or(1)};
  within("distill-weight", rule.weight, 0, 1);
  within("distill-temperature", rule.temperature, 0.01, 100);
  return rule;
}

}  // namespace

void apply_recipe(TrainConfig& c, DeviceConfig& device, ModelFlags& model, const Flags& flags) {
  if (c.recipe.empty()) return;
  check(c.recipe == "paper", "--recipe: the only one is paper, not \"{}\"", c.recipe);
  const auto set = [&](const char* flag, auto& field, auto value) {
    if (!flags.given(flag)) field = value;
  };
  set("batch-size", c.batch_size, 8);
  set("grad-accum", c.grad_accum, 60);
  set("steps", c.steps, 20000);
  set("warmup-steps", c.warmup_steps, 2000);
  set("lr", c.lr, 6e-4);
  set("min-lr", c.min_lr, 6e-5);
  set("dtype", device.dtype, "bf16");
  if (!c.model.empty()) model.restore({{"context-length", "1024"}});  // a checkpoint's is what it is
}

TrainPlan resolve(const TrainConfig& c, const LanguageModel& model) {
  check(c.steps.has_value(), "--steps: is missing");
  TrainPlan plan{};
  plan.config = c;
  plan.steps = *c.steps;
  in_range("steps", plan.steps, 1, kMostSteps);
  in_range("batch-size", c.batch_size, 1, kMostSequences);
  in_range("grad-accum", c.grad_accum, 1, kMostSequences);
  in_range("eval-batches", c.eval_batches, 0, kMostSteps);
  in_range("keep", c.keep, 1, 1 << 30);
  within("weight-decay", c.weight_decay, 0, 1e6);
  within("beta1", c.beta1, 0, 0.9999999);
  within("beta2", c.beta2, 0, 0.9999999);
  within("eps", c.eps, 1e-30, 1);
  within("grad-clip", c.grad_clip, 0, 1e30);
  if (c.peak_tflops) check(*c.peak_tflops > 0, "--peak-tflops: must be positive, not {}", *c.peak_tflops);

  plan.eval_every = c.eval_every.value_or(tenth(plan.steps));
  plan.save_every = c.save_every.value_or(plan.eval_every);
  in_range("eval-every", plan.eval_every, 1, kMostSteps);
  in_range("save-every", plan.save_every, 1, kMostSteps);
  plan.schedule = {c.lr, c.min_lr.value_or(c.lr / 10), c.warmup_steps.value_or(plan.steps / 10),
                   c.lr_decay_steps.value_or(plan.steps)};
  check_schedule(plan.schedule);
  in_range("warmup-steps", plan.schedule.warmup_steps, 0, kMostSteps);
  in_range("lr-decay-steps", plan.schedule.lr_decay_steps, 0, kMostSteps);

  plan.depth = model.default_depth_rule();
  if (c.depth_sampler) plan.depth.sampler = *c.depth_sampler;
  if (c.depth) {
    model.check_depth(*c.depth, "--depth");
    plan.depth.depth = *c.depth;
  }
  plan.depth.check_valid(model.depths().lowest);
  check(plan.depth.sampler != "poisson" || model.default_depth_rule().sampler == "poisson",
        "--depth-sampler: poisson is how a model of architecture poisson is trained, not {}",
        model.config().architecture);
  check(c.depth_scope == "micro" || c.depth_scope == "step", "--depth-scope: must be micro or step, not \"{}\"",
        c.depth_scope);
  plan.depth_per_step = c.depth_scope == "step";
  plan.trained_prefix = trained_prefix(c, model);
  plan.distillation = distillation_of(c, model);
  check(c.init_map.empty() || c.init_map == "middle", "--init-map: the only one is middle, not \"{}\"", c.init_map);
  check(c.init_map.empty() || !c.init_from.empty(), "--init-map: needs --init-from, a dense checkpoint");
  plan.order = {.kind = data_order(c.data_order),
                .seed = c.seed,
                .context_length = model.config().context_length,
                .batch_size = c.batch_size,
                .micro_batches = c.grad_accum};
  // Exits that are not trained for, such as a dense model's, are validated on request alone.
  const bool full_alone = c.eval_depths == "all" && !model.trains_exits();
  plan.eval_depths = parse_depths(full_alone ? "full" : c.eval_depths, model, "--eval-depths");
  return plan;
}

std::vector<int> parse_depths(const std::string& text, const LanguageModel& model, const std::string& flag) {
  const DepthRange range = model.depths();
  if (text == "full") return {range.full};
  std::vector<int> depths;
  if (text == "all") {
    for (int d = range.lowest; d <= range.full; ++d) depths.push_back(d);
    return depths;
  }
  for (const char *p = text.data(), *end = p + text.size();;) {
    int depth = 0;
    const auto [stop, error] = std::from_chars(p, end, depth);
    check(error == std::errc{} && (stop == end || (*stop == ',' && stop + 1 != end)),
          "{}: must be all, full or a list such as 1,2,4, not \"{}\"", flag, text);
    model.check_depth(depth, flag.c_str());
    depths.push_back(depth);
    if (stop == end) break;
    p = stop + 1;
  }
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

}  // namespace grt
