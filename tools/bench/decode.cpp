#include "tools/bench/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "core/philox.h"
#include "models/model.h"
#include "train/device.h"
#include "train/generate.h"

namespace grt {
namespace {

std::int64_t sequences_of(const std::string& text) {
  std::int64_t n = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  check(error == std::errc{} && stop == text.data() + text.size() && 1 <= n && n <= 65536,
        "--sequences: must be numbers from 1 on, not \"{}\"", text);
  return n;
}

struct Subject {
  std::string name;
  std::unique_ptr<LanguageModel> model;
};

Subject load(const std::string& name, const DecodeBench& bench, DType weights, Device& device) {
  Json json = find_model(name);
  const std::string where = "--model " + name;
  std::int64_t context = bench.context_length;
  if (context == 0) context = std::max(make_model(json, where)->config().context_length, bench.prompt + bench.tokens);
  check(context > bench.prompt, "--context-length: decoding needs more than the {} of --prompt, not {}", bench.prompt,
        context);
  json["context_length"] = context;
  Subject subject{name, make_model(json, where)};
  if (bench.dtype == "f32") subject.model->pack_weights(weights);
  subject.model->params().allocate(device, DType::f32);
  subject.model->params().initialize(1337);
  device.release_idle();
  return subject;
}

// What a step, a new token for each sequence, must do at least after `context` tokens: read every weight once for each
// use, and each sequence's keys and values.
struct Work {
  double flops, bytes;
  // On a machine that does nothing else.
  double seconds(const Peak& peak) const { return std::max(flops / peak.flops, bytes / peak.bytes); }
};

Work work_of(const LanguageModel& model, DType weights, double sequences, double context) {
  const int depth = model.depths().full;
  const Flops products = model.flops(0, depth);
  const double uses = (products.executed_body + products.executed_head) / 2;
  const double each = static_cast<double>(bytes_of(weights, kPanelRows, kPanelColumns)) / (kPanelRows * kPanelColumns);
  const double cached =
      2 * context * static_cast<double>(model.config().d_model) * static_cast<double>(model.applications(depth).size());
  return {sequences * 2 * (uses + cached), uses * each + sequences * sizeof(float) * cached};
}

// One way to decode, and how long it takes.
struct Row {
  const Subject* subject;
  KvStrategy kv;
  std::int64_t sequences, prompt, tokens;
  std::vector<double> seconds = {};  // of a step, by round
  std::vector<double> reading = {};  // a byte, just before each round
  double prompt_seconds = 0;         // of the last round
  std::int64_t cache_bytes = 0;
  double work_bytes = 0;  // the most that lies in memory besides weights and cache, the prompt's pass included

  const LanguageModel& model() const { return *subject->model; }
  std::string name() const {
    return fmt::format("{}, kv {}, {} x {}+{}", subject->name, name_of(kv), sequences, prompt, tokens);
  }
  // Of the bytes per second that were read just before: what a shared machine can do changes all the time, so medians
  // are compared with medians.
  double share_of_reading(double bytes) const { return bytes * timing_of(reading).median / timing_of(seconds).median; }
  double context() const { return static_cast<double>(prompt) + static_cast<double>(tokens + 1) / 2; }
  double weight_bytes() const { return static_cast<double>(model().params().bytes()); }
  double peak_bytes() const { return weight_bytes() + static_cast<double>(cache_bytes) + work_bytes; }
  void run(Device& device);
};

// Sequences of random tokens, continued by the likeliest.
void Row::run(Device& device) {
  const auto V = static_cast<std::uint64_t>(model().config().vocab_size);
  std::vector<std::vector<int>> prompts(sequences, std::vector<int>(prompt));
  for (std::size_t s = 0; s < prompts.size(); ++s)
    for (std::size_t t = 0; t < prompts[s].size(); ++t)
      prompts[s][t] = static_cast<int>(random_below({1, static_cast<std::uint32_t>(s), 3}, t, V));
  const std::size_t before = device.in_use();
  device.reset_peak();
  const std::unique_ptr<Hold> hold = hold_rounded(model());
  Decoder decoder(model(), {.kv = kv}, prompt + tokens);
  std::vector<double> logits;
  prompt_seconds = seconds_of([&] { logits = decoder.start(prompts); });
  const Sampling greedy{.temperature = 0};
  std::vector<int> ids(prompts.size());
  seconds.push_back(seconds_of([&] {
                      for (std::int64_t t = 0; t < tokens; ++t) {
                        for (std::size_t s = 0; s < ids.size(); ++s)
                          ids[s] =
                              choose(std::span(logits).subspan(s * V, V), greedy, static_cast<int>(s), prompt + t).id;
                        logits = decoder.next(ids);
                      }
                    }) /
                    static_cast<double>(tokens));
  cache_bytes = decoder.cache_bytes();
  work_bytes = static_cast<double>(device.peak() - before) - static_cast<double>(cache_bytes);
}

std::vector<Row> rows_of(const std::vector<Subject>& subjects, const DecodeBench& bench) {
  std::vector<Row> rows;
  for (const std::string& sequences : bench.sequences)
    for (const std::string& kv : bench.kv)
      for (const Subject& s : subjects) {
        const KvStrategy strategy = kv_strategy(kv);
        if (strategy != KvStrategy::full && !s.model->reduces_kv()) continue;
        const std::int64_t tokens = std::min(bench.tokens, s.model->config().context_length - bench.prompt);
        rows.push_back({&s, strategy, sequences_of(sequences), bench.prompt, tokens});
      }
  return rows;
}

void run_rounds(std::vector<Row>& rows, int rounds, Device& device) {
  const MemoryProbe memory(device);
  for (Row& row : rows) row.run(device);  // warms up
  for (Row& row : rows) row.seconds.clear();
  for (int round = 0; round < rounds; ++round)
    for (Row& row : rows) {
      row.reading.push_back(1 / memory.bytes_per_second(3));  // the best: threads may have to wake up
      row.run(device);
    }
}

void add_row(Report& report, const Row& row, const std::string& weights, const Work& work) {
  const Timing time = timing_of(row.seconds);
  const double prompt_tokens = static_cast<double>(row.sequences * row.prompt);
  report.add({"decode",
              row.name() + ", " + weights,
              time,
              work.flops,
              work.bytes,
              static_cast<double>(row.sequences),
              {{"weights", weights},
               {"kv", name_of(row.kv)},
               {"sequences", row.sequences},
               {"mean_context", row.context()},
               {"ms_per_token", 1e3 * time.median},
               {"share_of_reading", row.share_of_reading(work.bytes)},
               {"prompt_tokens_per_s", prompt_tokens / row.prompt_seconds},
               {"weight_bytes", row.weight_bytes()},
               {"cache_bytes", row.cache_bytes},
               {"peak_device_bytes", row.peak_bytes()}}});
}

// A row beside the first model's with as many sequences and the whole cache.
void print_row(Report& report, const Row& row, const Row& first, DType weights) {
  const auto all = [&](const Row& r) {
    return work_of(r.model(), weights, static_cast<double>(r.sequences), r.context());
  };
  const auto work = [&](const Row& r) { return all(r).seconds(report.peak()); };
  const std::vector<std::string> names = {first.name(), row.name()};
  const std::vector<double> seconds = {timing_of(first.seconds).median, timing_of(row.seconds).median};
  const Share share = share_of_first(report, "decode", "work", names, seconds, {work(first), work(row)}, 1);
  fmt::print("  {:<20}{:>6}{:>5}{:>11.1f}{:>10.2f}{:>7.0f} %{:>10.1f}{:>10.1f}{:>10.1f}{:>9.3f}{:>8.3f}{:>13.3f}\n",
             row.subject->name, name_of(row.kv), row.sequences, static_cast<double>(row.sequences) / seconds[1],
             1e3 * seconds[1], 100 * row.share_of_reading(all(row).bytes), row.weight_bytes() / 1e6,
             static_cast<double>(row.cache_bytes) / 1e6, row.peak_bytes() / 1e6, share.time, share.work,
             share.time_for_work());
}

void print_table(Report& report, const std::vector<Row>& rows, const std::string& name, DType weights) {
  fmt::print("\n  {:<20}{:>6}{:>5}{:>11}{:>10}{:>9}{:>10}{:>10}{:>10}{:>9}{:>8}{:>13}\n", name + " weights", "kv",
             "seq", "tokens/s", "ms/token", "reading", "weights", "cache", "peak MB", "time", "work", "time / work");
  const Row* first = nullptr;
  for (const Row& row : rows) {
    if (!first || first->sequences != row.sequences) first = &row;
    print_row(report, row, *first, weights);
  }
  fmt::print(
      "  ms/token: of a step, which makes a token of each sequence. reading: its bytes per second, as a share of what "
      "plain\n  reads (on a GPU: a copy) got just before. time, and work (the longer of what its bytes and its FLOPs "
      "take at the\n  peak), are relative to {}; medians of rounds in which all take turns\n",
      first->subject->name);
}

// How much smaller a reduced cache is: of a layer of the core, and in all.
void print_cache_ratios(Report& report, const std::vector<Row>& rows) {
  std::vector<const Subject*> seen;
  for (const Row& row : rows) {
    if (row.kv == KvStrategy::full || std::count(seen.begin(), seen.end(), row.subject)) continue;
    seen.push_back(row.subject);
    const KvLayout layout = row.model().kv_layout(row.model().depths().full);
    const double all = static_cast<double>(layout.slots(KvStrategy::full)) / layout.slots(row.kv);
    fmt::print("  {}: a reduced cache is {:.2f} x smaller for a layer of the core, {:.2f} x for the whole model\n",
               row.subject->name, static_cast<double>(layout.steps), all);
    report.note("decode", row.subject->name + ", reduced cache",
                {{"core_layer_ratio", layout.steps}, {"model_ratio", all}});
  }
}

}  // namespace

void check_decode(const DecodeBench& bench) {
  for (const std::string& weights : bench.weights)
    check(packed_type(weights) == DType::packed_f32 || bench.dtype == "f32",
          "--weights: {} goes with --dtype f32, not {}", weights, bench.dtype);
  for (const std::string& kv : bench.kv) kv_strategy(kv);
  for (const std::string& sequences : bench.sequences) sequences_of(sequences);
  check(!bench.kv.empty() && kv_strategy(bench.kv[0]) == KvStrategy::full,
        "--kv: the first is full, which the others are compared with");
  check(bench.prompt >= 1, "--prompt: must be at least 1, not {}", bench.prompt);
}

void bench_decode(const DecodeBench& bench, Device& device, Report& report) {
  for (const std::string& weights : bench.weights) {
    const DType type = packed_type(weights);
    report.begin("decode");
    std::vector<Subject> subjects;
    for (const std::string& name : bench.models) subjects.push_back(load(name, bench, type, device));
    std::vector<Row> rows = rows_of(subjects, bench);
    run_rounds(rows, bench.rounds, device);
    device.release_idle();
    report.measure_peaks(10);
    for (const Row& row : rows)
      add_row(report, row, weights, work_of(row.model(), type, static_cast<double>(row.sequences), row.context()));
    print_table(report, rows, weights, type);
    print_cache_ratios(report, rows);
  }
}

}  // namespace grt
