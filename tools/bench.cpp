// bench: how fast the products, the operations, training and decoding are, beside what this machine can do at best.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/main.h"
#include "core/threads.h"
#include "tools/bench/decode.h"
#include "tools/bench/growth.h"
#include "tools/bench/operations.h"
#include "tools/bench/products.h"
#include "tools/bench/training.h"
#include "train/device.h"

namespace grt {
namespace {

constexpr std::array kModes = {"gemm", "attention", "ops", "train", "decode", "growth", "all"};

struct Options {
  std::vector<std::string> modes, models;
  std::string scale;
  std::int64_t batch_size = 1, prompt = 4, tokens = 128;
  std::vector<std::string> weights = {"f32"}, kv = {"full"}, sequences = {"1"};
  std::optional<std::int64_t> context_length;
  int rounds = 5;
  std::string filter, openblas;
  std::optional<std::string> json;
  std::optional<int> threads;
  bool on_request = false, recompute = false, alone = false;
  std::vector<std::string> dtypes = {"f32"}, torch;
  std::string device = "cpu", python = "/usr/bin/python3";

  template <class V>
  void fields(V&& v) {
    v("model", models,
      "train, decode: presets or config.json files (default: gpt2-small); several take turns and are compared");
    v("scale", scale,
      "train, decode: nano, small, medium or large: every model of this size, beside dense of as many block "
      "applications");
    v("batch-size", batch_size, "train: sequences of a step");
    v("context-length", context_length,
      "train, decode: tokens of a sequence (default: the model's; decode: or what --prompt and --tokens need)");
    v("prompt", prompt, "decode: tokens of a sequence before the new ones");
    v("tokens", tokens, "decode: new tokens of a sequence, in each round");
    v("weights", weights, "decode: how weights are kept: f32, bf16, int8; one after the other");
    v("kv", kv,
      "decode: what the cache keeps: full, and of the models that have them mean, last, first; they take turns");
    v("sequences", sequences, "decode: sequences side by side; several numbers take turns");
    v("rounds", rounds, "timings of each row, of which the median and the best are shown");
    v("filter", filter, "gemm, attention, ops: only rows whose name contains this text");
    v("openblas", openblas, "gemm: the library to compare with (default: Debian's, the build with OpenMP first)");
    v("json", json, "file to write all numbers to");
    v("device", device, "cpu, cuda, cuda:N or auto; gemm's comparison and growth over threads are those of the CPU");
    v("threads", threads, "CPU threads (default: the CPUs this process may use)");
    v("dtype", dtypes,
      "train: f32, bf16 (products of bf16 factors), or both, which take turns; on a GPU the first is everything's");
    v("alone", alone, "train: one process at a time, started for each turn: for models that do not fit together");
    v("recompute", recompute, "train: keep one state for each recurrence, and compute the rest again");
    v("torch", torch,
      "train: beside PyTorch as installed, tuned (on the CPU: BLAS, memory, vectors) or compiled (torch.compile); "
      "several take turns");
    v("python", python, "train: the interpreter that has the module torch");
    v("on-request", on_request, "train: one step for each line on stdin, one JSON line for each step on stdout");
  }

  // On the CPU whatever is not a training step in a process of its own computes in f32, beside what it does in bf16.
  std::string dtype() const { return on_request || device != "cpu" ? dtypes[0] : "f32"; }
  DecodeBench decoding() const {
    return {models, dtype(), weights, kv, sequences, prompt, tokens, context_length.value_or(0), rounds};
  }
  RowChoice rows() const { return {filter, rounds}; }
  bool chosen(const std::string& mode) const {  // "all" has the attention among the operations
    return std::any_of(modes.begin(), modes.end(), [&](const std::string& m) {
      return m == mode || (m == "all" && mode != "attention" && mode != "growth");
    });
  }
};

void check_filter(const Options& options) {
  const RowChoice rows = options.rows();
  const bool found = rows.filter.empty() || (options.chosen("gemm") && has_product(rows)) ||
                     (options.chosen("ops") && has_operation(rows, "ops")) ||
                     (options.chosen("attention") && has_operation(rows, "attention"));
  check(found, "--filter: no row's name contains \"{}\"", options.filter);
}

// A flag that none of the benchmarks asked for looks at would go unnoticed.
void check_used(const Options& options, const Flags& flags) {
  const auto needs = [&](std::initializer_list<const char*> names, std::initializer_list<const char*> modes) {
    const bool used = std::any_of(modes.begin(), modes.end(), [&](const char* m) { return options.chosen(m); });
    for (const char* name : names)
      check(used || !flags.given(name), "--{}: is for {}, not {}", name, fmt::join(modes, ", "),
            fmt::join(options.modes, ", "));
  };
  needs({"model", "scale", "context-length"}, {"train", "decode", "growth"});
  needs({"batch-size", "recompute"}, {"train", "growth"});
  needs({"prompt", "tokens", "weights", "kv", "sequences"}, {"decode"});
  needs({"filter"}, {"gemm", "attention", "ops"});
  needs({"openblas"}, {"gemm"});
  needs({"alone", "torch", "python", "on-request"}, {"train"});
}

void check_options(Options& options, const Flags& flags) {
  if (options.modes.empty()) options.modes = {"all"};
  for (const std::string& mode : options.modes)
    check(std::find(kModes.begin(), kModes.end(), mode) != kModes.end(), "what: no benchmark \"{}\"; there are {}",
          mode, fmt::join(kModes, ", "));
  check_filter(options);
  check_used(options, flags);
  check(options.rounds >= 1, "--rounds: must be at least 1, not {}", options.rounds);
  check(options.batch_size >= 1, "--batch-size: must be at least 1, not {}", options.batch_size);
  check(options.tokens >= 1, "--tokens: must be at least 1, not {}", options.tokens);
  check(!options.context_length || *options.context_length >= 1, "--context-length: must be at least 1, not {}",
        options.context_length.value_or(0));
  check(options.models.empty() || options.scale.empty(), "--scale: names the models, as --model does; give one");
  if (!options.scale.empty()) options.models = models_of_scale(options.scale);
  if (options.models.empty()) options.models = {options.modes[0] == "growth" ? "grt-nano" : "gpt2-small"};
  check(!options.on_request || (options.modes == std::vector<std::string>{"train"} && options.models.size() == 1),
        "--on-request: goes with train and one --model alone");
  check(!options.chosen("growth") || options.models.size() == 1, "growth: takes one --model, not {}",
        options.models.size());
  check_torch(options.torch, options.python);
  for (const std::string& dtype : options.dtypes)
    check(dtype == "f32" || dtype == "bf16", "--dtype: must be f32 or bf16, not \"{}\"", dtype);
  check_decode(options.decoding());
  if (options.json) const FileWriter probe(*options.json);  // fails now and not after the work
}

int run(int argc, char** argv) {
  Options options;
  Flags flags("bench", "Speed of products, operations, training and decoding, with shares of this machine's peak.");
  flags.positional("what", options.modes, fmt::format("{} (default: all)", fmt::join(kModes, ", ")));
  flags.add(options);
  if (!flags.parse(argc, argv)) return 0;
  check_options(options, flags);

  const std::string dtype = options.dtype();
  const DeviceConfig config{.device = options.device, .dtype = dtype, .threads = options.threads};
  // On request: the process that started this one has told.
  const std::unique_ptr<Device> device = options.on_request ? config.open() : config.open_and_tell();
  const StepShape shape{options.batch_size, options.context_length.value_or(0), options.recompute};
  if (options.on_request) {
    train_on_request(options.models[0], shape, *device);
    return 0;
  }
  Report report(*device, dtype == "f32" ? Arithmetic::f32 : Arithmetic::bf16);
  if (options.chosen("gemm")) bench_gemm(options.rows(), options.openblas, *device, report);
  if (options.chosen("attention")) bench_ops(options.rows(), "attention", *device, report);
  if (options.chosen("ops")) bench_ops(options.rows(), "ops", *device, report);
  if (options.chosen("train"))
    bench_train({options.models, shape, options.rounds, options.dtypes, options.torch, options.python, options.alone},
                *device, report);
  if (options.chosen("decode")) bench_decode(options.decoding(), *device, report);
  if (options.chosen("growth")) bench_growth(options.models[0], shape, options.rounds, *device, report);
  if (options.json) {
    const Json file = {{"device", device->name()},
                       {"threads", thread_count()},
                       {"rounds", options.rounds},
                       {"results", report.rows()}};
    write_file(*options.json, file.dump(1) + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("bench", [&] { return grt::run(argc, argv); });
}
