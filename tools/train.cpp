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
std::string resume_command(const TrainConfig& config, int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    std::string word = argv[i];
    if (word.starts_with("--overwrite") || word.starts_with("--resume")) continue;
    if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@") !=
            word.npos ||
        word.empty()) {
      for (std::size_t at = 0; (at = word.find('\'', at)) != word.npos; at += 4) word.replace(at, 1, "'\\''");
      word = "'" + word + "'";
    }
    command += (i ? " " : "") + word;
  }
  if (config.overwrite && !config.config.empty()) command += " --overwrite=false";  // that file may say true
  return command + " --resume";
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

// The step directory of --teacher. A run goes on with the one that it began with, though the teacher's own run may have
// gone on meanwhile; `saved`: the flags it began with, or null.
std::string teacher_checkpoint(const std::string& given, const Json& saved) {
  if (given.empty()) return given;
  const auto kept = saved.find("teacher");
  const fs::path before = kept != saved.end() && kept->is_string() ? kept->get<std::string>() : "";
  if (step_number(before.filename().string()) && same_place(before.parent_path(), given)) return before.string();
  return resolve_checkpoint(given).string();
}

// --resume: the flags of the run so far stand where none is given now.
void take_over(Run& run, const Flags& flags) {
  TrainConfig& c = run.config;
  check(!c.out.empty(), "--out: is missing");
  check(!c.overwrite, "--resume and --overwrite exclude each other");
  check(!is_checkpoint(c.out), "--out {}: is a checkpoint; a run goes on in the directory that holds its checkpoints",
        c.out);
  pointed_to(c.out, "best");  // or its error: the next save would read it
  run.checkpoint = resolve_checkpoint(c.out);
  run.start = load_trainer_state(run.checkpoint);
  const Json& saved = run.start.flags;
  for (const auto& [flag, value] :
       {std::pair("init-from", c.init_from), {"init-map", c.init_map}, {"recipe", c.recipe}}) {
    const Json before = saved.value(flag, Json(""));
    check(!flags.given(flag) || before == Json(value), "--resume: the run began with --{} {}, and not with {}", flag,
          to_text(before), to_text(value));
  }
  if (flags.given("teacher")) c.teacher = teacher_checkpoint(c.teacher, saved);
  const std::string where = (run.checkpoint / "trainer.json").string();
  std::vector<std::string> changes = restore_values(c, saved, where, flags);
  for (const std::string& change : restore_values(run.device, saved, where, flags)) changes.push_back(change);
  if (const auto it = saved.find("model-flags"); it != saved.end()) {
    check(it->is_object() && std::all_of(it->begin(), it->end(), [](const Json& v) { return v.is_string(); }),
          "{}: flags.model-flags must be an object of texts, not {}", where, to_text(*it).substr(0, 100));
    run.model_flags.restore(*it);
  }
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

void check_stored(const Params& params, const fs::path& weights) {
  check_weights(params, Safetensors(weights), weights.string());
}

fs::path weights_of(const std::string& checkpoint) { return resolve_checkpoint(checkpoint) / "model.safetensors"; }

// The teacher's configuration, once it is known to speak of the same tokens; null: there is none.
Json teacher_config(const Run& run, const BackboneConfig& student) {
  if (run.config.teacher.empty()) return nullptr;
  const auto teacher = declare_checkpoint(run.config.teacher);
  check_stored(teacher->params(), weights_of(run.config.teacher));
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
  check_stored(dense->params(), weights_of(run.config.init_from));
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
  fmt::print("lr: {:.4g} after {} steps of warm-up, {:.4g} from step {} on\n", plan.schedule.lr,
             plan.schedule.warmup_steps, plan.schedule.min_lr, plan.schedule.lr_decay_steps);
  if (!run.config.teacher.empty())
    fmt::print("teacher: {}, weight {}, temperature {}\n", run.config.teacher, plan.distillation.weight,
               plan.distillation.temperature);
}

// What --overwrite removes must be nothing that the run begins with.
void check_overwrite(const TrainConfig& c) {
  if (!c.overwrite) return;
  for (const auto& [flag, place] : {std::pair("init-from", c.init_from), {"teacher", c.teacher}})
    check(place.empty() || !lies_in(resolve_checkpoint(place), c.out), "--overwrite: would remove --{} {}, in --out {}",
          flag, place, c.out);
}

// Ranks that were started differently would go on side by side, to no good end.
void check_ranks(const Run& run, const LanguageModel& model, Comm& comm) {
  check(run.config.grad_accum >= comm.size(), "--grad-accum: the {} micro-batches of a step cannot keep {} ranks busy",
        run.config.grad_accum, comm.size());
  Json started = run_flags(run);
  started.erase("threads");
  const std::string text = to_text(started) + to_text(model.config_json()) + step_name(run.start.step);
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

struct RunData {
  TokenData train;
  std::optional<TokenData> val;
};

RunData open_data(const TrainConfig& c, const BackboneConfig& model, Comm& comm) {
  RunData data{TokenData::open(c.data_train, model.vocab_size), {}};
  check_same_data("--data-train", data.train, comm);
  check_trainable(data.train, model.context_length);
  if (!c.data_val.empty()) {
    data.val = TokenData::open(c.data_val, model.vocab_size);
    check_same_data("--data-val", *data.val, comm);
  }
  return data;
}

// What a run goes on with may have changed in its place. Losses of other text than before are not compared.
void note_data(Run& run, const RunData& data) {
  TrainerState& start = run.start;
  const TrainConfig& c = run.config;
  const std::string trained = data.train.fingerprint_text();
  if (!start.trained_on.empty() && start.trained_on != trained)
    fmt::print("--data-train {}: holds other tokens than those that the run was trained on\n", c.data_train);
  start.trained_on = trained;
  if (!data.val) return;
  const std::string windows = c.eval_batches == 0 ? "all" : std::to_string(c.eval_batches * c.batch_size);
  const std::string validated = fmt::format("{}, {} windows", data.val->fingerprint_text(), windows);
  if (!start.validated_on.empty() && start.validated_on != validated && start.best_val_loss) {
    fmt::print("validation is of other text than before: the best loss so far, {:.4f}, is forgotten\n",
               *start.best_val_loss);
    start.best_val_loss.reset();
  }
  start.validated_on = validated;
}

// Prints what the run is and needs; throws Error if there is not the memory.
void announce(const Run& run, const TrainPlan& plan, const LanguageModel& model, Device& device, Comm& comm,
              std::int64_t available) {
  MemoryNeeds needs = memory_needs(run, plan, model);
  if (run.config.shard_optimizer) needs.moment_shares = comm.size();
  needs.keeps = device.kernels().keeps();
  needs.gpu = on_gpu(device);
  const MemoryPlan memory = plan_memory(needs);
  print_header(run, plan, model, device, comm.size());
  check_init_map(run, model);
  fmt::print("{}{}", comm.size() > 1 ? "each rank's " : "", describe(memory));
  check_fits(memory, needs, available);
}

void begin(Run& run, const Flags& flags) {
  if (run.config.resume) return take_over(run, flags);
  apply_recipe(run.config, run.device, run.model_flags, flags);
  run.config.teacher = teacher_checkpoint(run.config.teacher, nullptr);
}

int train(Run& run, const Flags& flags, const std::string& command, Comm& launched) {
  begin(run, flags);
  const std::unique_ptr<Device> device = run.device.open_and_tell(launched);  // outlives every tensor
  const DType dtype = run.device.type();
  const std::unique_ptr<LanguageModel> model = declare_model(run, flags);
  if (run.config.resume) check_same_model(run, *model);
  TrainPlan plan = resolve(run.config, *model);
  plan.order.first_step = run.start.step;
  plan.order.first_sequence = run.start.sequences;
  if (run.config.print_config) {
    fmt::print("{}\n", to_text({{"flags", run_flags(run)}, {"model", model->config_json()}}, 1));
    return 0;
  }

  check(!run.config.out.empty(), "--out: is missing");
  check(!run.config.data_train.empty(), "--data-train: is missing");
  for (const char* flag : {"eval-batches", "eval-depths"})
    check(!flags.given(flag) || !run.config.data_val.empty(), "--{}: needs --data-val", flag);
  check_overwrite(run.config);
  check_ranks(run, *model, launched);
  const std::unique_ptr<Comm> on_device = ranks_on(*device, launched);
  Comm& comm = on_device ? *on_device : launched;
  RunData data = open_data(run.config, model->config(), launched);
  note_data(run, data);
  // On the CPU ranks share the memory.
  announce(run, plan, *model, *device, comm, device->available() / (on_device ? 1 : comm.local_size()));
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
  Trainer trainer(plan, *model, std::move(data.train), std::move(data.val), run.start,
                  launch_command(comm.size()) + command, teacher.get(), comm);
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
    return grt::train(run, flags, grt::resume_command(run.config, argc, argv), comm);
  });
}
