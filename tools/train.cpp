// train: raw token files in, a trained model out. From here: train/trainer.cpp is the loop, models/grt.cpp the forward
// pass, ops/*.cpp the operations with their derivatives, ops/cpu/*.cpp the kernels.
#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "core/main.h"
#include "core/threads.h"
#include "models/flags.h"
#include "ops/kernels.h"
#include "train/device.h"
#include "train/init_map.h"
#include "train/memory_plan.h"
#include "train/run_directory.h"
#include "train/trainer.h"

namespace grt {
namespace {

// A shell command that gives this run again, with --resume.
std::string resume_command(int argc, char** argv) {
  std::string command;
  bool resumes = false;
  for (int i = 0; i < argc; ++i) {
    std::string word = argv[i];
    if (word.starts_with("--overwrite")) continue;
    if (word.starts_with("--init-")) {  // of the run's beginning, which --resume refuses
      if (word.find('=') == word.npos) ++i;
      continue;
    }
    resumes |= word.starts_with("--resume");
    if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@") !=
            word.npos ||
        word.empty()) {
      for (std::size_t at = 0; (at = word.find('\'', at)) != word.npos; at += 4) word.replace(at, 1, "'\\''");
      word = "'" + word + "'";
    }
    command += (i ? " " : "") + word;
  }
  return resumes ? command : command + " --resume";
}

struct Run {
  TrainConfig config;
  DeviceConfig device;
  ModelFlags model_flags;
  fs::path checkpoint;  // to resume from; empty for a new run
  TrainerState start;
};

Json run_flags(const Run& run) {
  Json flags = values_of(run.config, run.device);
  for (const char* once : {"resume", "overwrite", "config", "print-config"}) flags.erase(once);
  flags["model-flags"] = run.model_flags.given();
  return flags;
}

// --resume: the flags of the run so far stand where none is given now.
void take_over(Run& run, const Flags& flags) {
  check(!run.config.out.empty(), "--out: is missing");
  check(!run.config.overwrite, "--resume and --overwrite exclude each other");
  for (const char* flag : {"init-from", "init-map"})
    check(!flags.given(flag), "--resume and --{} exclude each other", flag);
  run.checkpoint = resolve_checkpoint(run.config.out);
  run.start = load_trainer_state(run.checkpoint);
  std::vector<std::string> changes = restore_values(run.config, run.start.flags, flags);
  for (const std::string& change : restore_values(run.device, run.start.flags, flags)) changes.push_back(change);
  if (const auto it = run.start.flags.find("model-flags"); it != run.start.flags.end()) run.model_flags.restore(*it);
  for (const std::string& change : changes) fmt::print("{}\n", change);
}

// The configuration asked for: a preset or file, or that of the checkpoint the run goes on or starts from, with the
// model flags applied.
std::unique_ptr<LanguageModel> declare_model(const Run& run, const Flags& flags) {
  Json json;
  std::string where = "--model " + run.config.model;
  if (!run.config.model.empty() && (run.checkpoint.empty() || flags.given("model"))) {
    json = find_model(run.config.model);
  } else {
    check(!run.config.init_from.empty() || !run.checkpoint.empty(), "--model: is missing");
    const fs::path from = run.checkpoint.empty() ? resolve_checkpoint(run.config.init_from) : run.checkpoint;
    where = (from / "config.json").string();
    json = read_json(where);
  }
  run.model_flags.apply(json);
  return make_model(json, where);
}

std::unique_ptr<LanguageModel> declare_checkpoint(const std::string& where) {
  const std::string config = (resolve_checkpoint(where) / "config.json").string();
  return make_model(read_json(config), config);
}

fs::path weights_of(const std::string& checkpoint) { return resolve_checkpoint(checkpoint) / "model.safetensors"; }

// The teacher's configuration, once it is known to speak of the same tokens; null: there is none.
Json teacher_config(const Run& run, const BackboneConfig& student) {
  if (run.config.teacher.empty()) return nullptr;
  const auto teacher = declare_checkpoint(run.config.teacher);
  check_weights(teacher->params(), weights_of(run.config.teacher));
  const BackboneConfig& c = teacher->config();
  check(c.vocab_size == student.vocab_size && c.tokenizer == student.tokenizer,
        "--teacher {}: has {} tokens of tokenizer {}, the model {} of {}", run.config.teacher, c.vocab_size,
        c.tokenizer, student.vocab_size, student.tokenizer);
  check(c.context_length >= student.context_length, "--teacher {}: has {} positions, the model {}", run.config.teacher,
        c.context_length, student.context_length);
  return teacher->config_json();
}

// The weights that a run begins with.
void fill(const Run& run, LanguageModel& model) {
  const TrainConfig& c = run.config;
  if (c.resume) return load_parameters(model.params(), run.checkpoint / "model.safetensors");
  if (!c.init_from.empty() && c.init_map.empty()) return load_parameters(model.params(), weights_of(c.init_from));
  model.params().initialize(c.seed);
  if (!c.init_from.empty()) load_from_dense(model, *declare_checkpoint(c.init_from), weights_of(c.init_from));
}

// Before memory is taken: which block of --init-from becomes which.
void check_init_map(const Run& run, const LanguageModel& model) {
  if (run.config.init_map.empty() || run.config.resume) return;
  const auto dense = declare_checkpoint(run.config.init_from);
  check_weights(dense->params(), weights_of(run.config.init_from));
  std::string list;
  for (const BlockCopy& copy : middle_blocks(model, *dense)) list += fmt::format(" {} <- {},", copy.to, copy.from);
  if (!list.empty()) list.pop_back();
  fmt::print("weights of {}:{}\n", run.config.init_from, list);
}

void check_same_model(const Run& run, const LanguageModel& model) {
  const std::string file = (run.checkpoint / "config.json").string();
  const Json saved = make_model(read_json(file), file)->config_json(), asked = model.config_json();
  for (const auto& [key, value] : asked.items())
    check(saved.contains(key) && saved[key] == value, "--resume: {} is {} in {}, and cannot become {}", key,
          saved.contains(key) ? saved[key].dump() : "absent", file, value.dump());
}

MemoryNeeds memory_needs(const Run& run, const TrainPlan& plan, const LanguageModel& model) {
  std::vector<int> depths = {plan.depth.smallest(), static_cast<int>(plan.depth.mean()), plan.depth.largest()};
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return {model.config_json(),
          run.device.type(),
          run.config.batch_size,
          depths,
          run.config.recompute,
          plan.trained_prefix,
          teacher_config(run, model.config())};
}

void print_header(const Run& run, const TrainPlan& plan, const LanguageModel& model, const Device& device, int ranks) {
  const std::int64_t context = plan.order.context_length;
  const Flops flops = model.flops(context, model.depths().full);
  const std::string source = !run.config.model.empty() ? run.config.model : "of " + run.config.init_from;
  fmt::print("model: {} {}, {} parameters, {:.3g} MFLOP/token forward at full depth {}\n", model.config().architecture,
             source, model.params().count(), (flops.executed_body + flops.executed_head) / 1e6, model.depths().full);
  fmt::print("device: {}, {}, {}{} threads\n", device.name(), run.device.dtype,
             ranks > 1 ? fmt::format("{} ranks of ", ranks) : "", thread_count());
  fmt::print(
      "steps: {} of {} tokens ({} x {} x {}: micro-batches, sequences, context), depth {}\n", plan.steps,
      run.config.batch_size * run.config.grad_accum * context, run.config.grad_accum, run.config.batch_size, context,
      plan.depth.random() ? fmt::format("{} in {}..{}", plan.depth.sampler, plan.depth.smallest(), plan.depth.largest())
                          : std::to_string(plan.depth.depth));
  if (!run.config.teacher.empty())
    fmt::print("teacher: {}, weight {}, temperature {}\n", run.config.teacher, plan.distillation.weight,
               plan.distillation.temperature);
}

// Ranks that were started differently would go on side by side, to no good end.
void check_ranks(const Run& run, const LanguageModel& model, Comm& comm) {
  check(run.config.grad_accum >= comm.size(), "--grad-accum: the {} micro-batches of a step cannot keep {} ranks busy",
        run.config.grad_accum, comm.size());
  Json started = run_flags(run);
  started.erase("threads");
  const std::string text = started.dump() + model.config_json().dump() + step_name(run.start.step);
  const std::vector<std::int64_t> all = comm.gather(static_cast<std::int64_t>(std::hash<std::string>{}(text)));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    check(all[rank] == all[0], "rank {} was started with other flags, or from another checkpoint, than rank 0", rank);
}

// Ranks of several machines may each read a copy of their own.
void check_same_data(const char* flag, const TokenData& data, Comm& comm) {
  if (comm.size() == 1) return;
  const std::vector<std::int64_t> prints = comm.gather(data.fingerprint()), sizes = comm.gather(data.size());
  for (std::size_t rank = 1; rank < prints.size(); ++rank)
    check(prints[rank] == prints[0], "{} {}: rank {} reads other tokens ({} of them) than rank 0 ({})", flag,
          data.name(), rank, sizes[rank], sizes[0]);
}

int train(Run& run, const Flags& flags, const std::string& command, Comm& launched) {
  if (run.config.resume)
    take_over(run, flags);
  else
    apply_recipe(run.config, flags);
  const std::unique_ptr<Device> device = run.device.open_and_tell(launched);  // outlives every tensor
  const DType dtype = run.device.type();
  const std::unique_ptr<LanguageModel> model = declare_model(run, flags);
  if (run.config.resume) check_same_model(run, *model);
  TrainPlan plan = resolve(run.config, *model);
  plan.order.first_step = run.start.step;
  plan.order.first_sequence = run.start.sequences;
  if (run.config.print_config) {
    fmt::print("{}\n", Json{{"flags", run_flags(run)}, {"model", model->config_json()}}.dump(1));
    return 0;
  }

  check(!run.config.out.empty(), "--out: is missing");
  check(!run.config.data_train.empty(), "--data-train: is missing");
  check_ranks(run, *model, launched);
  const std::unique_ptr<Comm> on_device = ranks_on(*device, launched);
  Comm& comm = on_device ? *on_device : launched;
  TokenData train = TokenData::open(run.config.data_train, model->config().vocab_size);
  check_same_data("--data-train", train, launched);
  check_trainable(train, plan.order.context_length);
  std::optional<TokenData> val;
  if (!run.config.data_val.empty()) {
    val = TokenData::open(run.config.data_val, model->config().vocab_size);
    check_same_data("--data-val", *val, launched);
  }

  MemoryNeeds needs = memory_needs(run, plan, *model);
  if (run.config.shard_optimizer) needs.moment_shares = comm.size();
  needs.keeps = device->kernels().keeps();
  needs.gpu = on_gpu(*device);
  const MemoryPlan memory = plan_memory(needs);
  print_header(run, plan, *model, *device, comm.size());
  check_init_map(run, *model);
  fmt::print("{}{}", comm.size() > 1 ? "each rank's " : "", describe(memory));
  check_fits(memory, needs, device->available() / (on_device ? 1 : comm.local_size()));  // on the CPU ranks share it
  comm.barrier();  // before any rank takes its part of that

  model->params().allocate(*device, dtype);
  model->params().allocate_gradients(plan.trained_prefix);
  fill(run, *model);
  std::unique_ptr<LanguageModel> teacher;
  if (!run.config.teacher.empty()) {
    teacher = load_model(run.config.teacher, *device, dtype);
    const std::string bad = first_bad_weight(teacher->params());
    check(bad.empty(), "--teacher {}: {}", run.config.teacher, bad);
  }

  std::optional<DirectoryLock> lock;
  if (comm.rank() == 0) {
    make_directories(run.config.out);
    lock.emplace(run.config.out);
    if (!run.config.resume) claim_directory(run.config.out, run.config.overwrite);
  }
  run.start.flags = run_flags(run);
  Trainer trainer(plan, *model, std::move(train), std::move(val), run.start, launch_command(comm.size()) + command,
                  teacher.get(), comm);
  if (run.config.resume) {
    trainer.load_moments(run.checkpoint);
    fmt::print("resumed after step {} from {}\n", run.start.step, run.checkpoint.string());
  }
  std::fflush(stdout);
  return trainer.run();
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_ranks("train", [&](grt::Comm& comm) {
    grt::Flags flags("train", "Trains a language model on token files (see tokenize) and validates it at every depth.");
    grt::Run run;
    flags.add(run.config);
    flags.add(run.device);
    run.model_flags.declare(flags);
    if (!flags.parse(argc, argv)) return 0;
    return grt::train(run, flags, grt::resume_command(argc, argv), comm);
  });
}
