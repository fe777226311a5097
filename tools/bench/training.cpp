#include "tools/bench/training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "core/device.h"
#include "core/threads.h"
#include "tools/bench/openblas.h"
#include "tools/bench/process.h"

namespace grt {
namespace {

constexpr std::array kTorchSettings = {"installed", "tuned", "compiled"};

// One process whose step is timed.
struct Participant {
  std::string name, model, dtype, setting;  // setting: of PyTorch, empty for our own
  std::vector<std::string> command, environment;
  std::unique_ptr<Process> process = {};
  Json ready = {}, last = {};
  std::vector<double> seconds = {};

  bool own() const { return setting.empty(); }
  void start() {
    process = std::make_unique<Process>(name, command, environment);
    ready = process->read();
  }
  void take_turn(bool alone) {
    if (!process) start();
    last = process->ask();
    seconds.push_back(last["seconds"]);
    if (alone) process.reset();
  }
  double get(const char* key) const { return (last.contains(key) ? last : ready)[key]; }
  double resident() const { return get("peak_resident_bytes"); }
  double tokens() const { return get("batch_size") * get("context_length"); }
  Timing timing() const { return timing_of(seconds); }
  Arithmetic arithmetic() const { return dtype == "bf16" ? Arithmetic::bf16 : Arithmetic::f32; }
};

std::string with_dtype(const std::string& name, const std::string& dtype) {
  return dtype == "f32" ? name : name + " " + dtype;
}

Json whole_config(const TrainBench& bench, const std::string& model) {
  Json config = find_model(model);
  if (bench.shape.context_length > 0) config["context_length"] = bench.shape.context_length;
  return make_model(config, "--model " + model)->config_json();
}

// What the processes of both kinds are told.
std::vector<std::string> shared_flags(const TrainBench& bench, const std::string& dtype) {
  return {"--batch-size", std::to_string(bench.shape.batch_size),
          "--threads",    std::to_string(thread_count()),
          "--dtype",      dtype};
}

Participant own_participant(const TrainBench& bench, const std::string& model, const std::string& dtype,
                            const Device& device) {
  const std::string where = on_cpu(device) ? "cpu" : device.name();
  std::vector<std::string> command = {own_binary(), "train", "--on-request", "--model", model, "--device", where};
  const std::vector<std::string> flags = shared_flags(bench, dtype);
  command.insert(command.end(), flags.begin(), flags.end());
  if (bench.shape.context_length > 0)
    command.insert(command.end(), {"--context-length", std::to_string(bench.shape.context_length)});
  if (bench.shape.recompute) command.push_back("--recompute");
  return {with_dtype(model, dtype), model, dtype, "", std::move(command), {}};
}

// What makes PyTorch's CPU build faster: a BLAS whose threads do not fight with OpenMP's, with kernels for this CPU;
// memory that is kept between steps, in huge pages; its widest vectors.
std::vector<std::string> tuned_environment() {
  std::vector<std::string> entries = {
      "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp",
      "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=8589934592:"
      "glibc.malloc.hugetlb=1"};
  if (cpu_level().starts_with("avx512")) entries.push_back("ATEN_CPU_CAPABILITY=avx512");
  if (!std::getenv("OPENBLAS_CORETYPE") && !openblas_core().empty())
    entries.push_back("OPENBLAS_CORETYPE=" + openblas_core());
  return entries;
}

Participant torch_participant(const TrainBench& bench, const std::string& model, const std::string& dtype,
                              const std::string& setting, const Device& device) {
  check(setting != "tuned" || on_cpu(device), "--torch: tuned is for --device cpu, not {}", device.name());
  std::vector<std::string> command = {bench.python, GRT_TORCH_SCRIPT, "serve", "--config",
                                      whole_config(bench, model).dump()};
  const std::vector<std::string> flags = shared_flags(bench, dtype);
  command.insert(command.end(), flags.begin(), flags.end());
  if (!on_cpu(device)) command.insert(command.end(), {"--device", device.name()});
  if (setting == "compiled") command.push_back("--compile");
  return {"PyTorch " + with_dtype(setting, dtype),
          model,
          dtype,
          setting,
          std::move(command),
          setting == "tuned" ? tuned_environment() : std::vector<std::string>{}};
}

std::vector<Participant> participants(const TrainBench& bench, const Device& device) {
  std::vector<Participant> all;
  for (const std::string& model : bench.models) {
    whole_config(bench, model);  // a wrong one is an error of ours
    for (const std::string& dtype : bench.dtypes) {
      all.push_back(own_participant(bench, model, dtype, device));
      for (const std::string& setting : bench.torch)
        all.push_back(torch_participant(bench, model, dtype, setting, device));
    }
  }
  return all;
}

// That PyTorch trains the same model.
void check_same_size(const Participant& torch, const Participant& own) {
  check(torch.get("parameters") == own.get("parameters"), "bench train: {} has {:.0f} parameters in {}, not {:.0f}",
        own.model, torch.get("parameters"), torch.name, own.get("parameters"));
}

// Of our own; its ratios are to PyTorch at the same type, and in bf16 to ourselves in f32.
Result result_of(const Participant& own, const std::vector<Participant>& all) {
  const Timing time = own.timing();
  Json more = own.ready;
  more.update({{"convention_gflops", own.get("convention_flops") / time.median / 1e9},
               {"activation_bytes", own.get("activation_bytes")},
               {"peak_resident_bytes", own.resident()}});
  for (const char* counted_elsewhere : {"flops", "convention_flops"}) more.erase(counted_elsewhere);
  std::vector<Peer> peers;
  for (const Participant& p : all) {
    if (p.model != own.model || &p == &own) continue;
    const bool same_type = !p.own() && p.dtype == own.dtype, exact = p.own() && p.dtype == "f32";
    if (!same_type && !exact) continue;
    peers.push_back({exact ? "our f32" : p.name, p.timing()});
    more["memory_ratio_to_" + peers.back().name] = own.resident() / p.resident();
  }
  return {.group = "train",
          .name = fmt::format("{}, {} x {}", own.name, own.get("batch_size"), own.get("context_length")),
          .time = time,
          .flops = own.get("flops"),
          .tokens = own.tokens(),
          .more = std::move(more),
          .peers = std::move(peers),
          .arithmetic = own.arithmetic()};
}

// The other's step, its share of the peak by the operations that we need for the same.
Result torch_result(const Participant& p, const Participant& own) {
  return {.group = "train",
          .name = fmt::format("{}, {}", p.name, own.model),
          .time = p.timing(),
          .flops = own.get("flops"),
          .tokens = own.tokens(),
          .more = {{"peak_resident_bytes", p.resident()}, {"built_from", p.ready["built_from"]}},
          .arithmetic = own.arithmetic()};
}

void print_details(const Participant& own) {
  fmt::print(
      "  {:<48}{:.1f} GFLOP/s by 6 N + 12 L d T; memory: {:.2f} GB state + {:.2f} GB activations; resident {:.2f} "
      "GB\n",
      "", own.get("convention_flops") / own.timing().median / 1e9, own.get("state_bytes") / 1e9,
      own.get("activation_bytes") / 1e9, own.resident() / 1e9);
}

// What a step of each model costs beside the first model's.
void print_table(Report& report, const std::vector<const Participant*>& own) {
  std::vector<std::string> names;
  std::vector<double> seconds, flops;
  for (const Participant* p : own) {
    names.push_back(p->name);
    seconds.push_back(p->timing().median);
    flops.push_back(p->get("flops"));
  }
  fmt::print("\n  {:<22}{:>10}{:>13}{:>13}{:>10}{:>10}{:>14}\n", "model", "tokens/s", "peak memory", "MFLOP/token",
             "time", "FLOPs", "time / FLOPs");
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Share share = share_of_first(report, "train", "executed_flops", names, seconds, flops, i);
    const double tokens = own[i]->tokens();
    fmt::print("  {:<22}{:>10.0f}{:>10.2f} GB{:>13.2f}{:>10.3f}{:>10.3f}{:>14.3f}\n", names[i], tokens / seconds[i],
               own[i]->resident() / 1e9, flops[i] / tokens / 1e6, share.time, share.work, share.time_for_work());
  }
  fmt::print("  time and executed FLOPs of a step are relative to {}; medians of rounds in which all take turns\n",
             names[0]);
}

}  // namespace

void check_torch(const std::vector<std::string>& settings, const std::string& python) {
  for (const std::string& s : settings)
    check(std::find(kTorchSettings.begin(), kTorchSettings.end(), s) != kTorchSettings.end(),
          "--torch: must be {}, not \"{}\"", fmt::join(kTorchSettings, " or "), s);
  check(settings.empty() || access(python.c_str(), X_OK) == 0, "--python: cannot start {}: {}", python,
        std::strerror(errno));
}

void bench_train(const TrainBench& bench, const Device& device, Report& report) {
  std::vector<Participant> all = participants(bench, device);
  // Started before any peak is measured, one after the other: what a process holds when it starts another belongs to
  // the other's peak memory.
  const Participant* own = nullptr;
  for (Participant& p : all) {
    if (!bench.alone) p.start();
    if (p.own()) own = &p;
    if (!p.own() && !bench.alone) check_same_size(p, *own);
  }
  report.begin("train");
  for (int round = 0; round < bench.rounds; ++round)
    for (Participant& p : all) p.take_turn(bench.alone);
  report.measure_peaks(10);

  std::map<std::string, std::vector<const Participant*>> by_type;
  for (const Participant& p : all) {
    if (p.own()) {
      own = &p;
      by_type[p.dtype].push_back(&p);
      report.add(result_of(p, all));
      print_details(p);
    } else {
      check_same_size(p, *own);
      report.add(torch_result(p, *own));
      fmt::print("  {:<48}{}; resident {:.2f} GB, {:.2f} x that of {}\n", "", p.ready["built_from"].get<std::string>(),
                 p.resident() / 1e9, p.resident() / own->resident(), own->name);
    }
  }
  for (const auto& [type, list] : by_type)
    if (list.size() > 1) print_table(report, list);
}

}  // namespace grt
