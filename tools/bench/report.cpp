#include "tools/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace grt {

Timing timing_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {(samples[n / 2] + samples[(n - 1) / 2]) / 2, samples[0]};
}

std::vector<Timing> take_turns(int rounds, std::span<const std::function<double()>> turns) {
  constexpr double kTurnSeconds = 0.01;
  constexpr std::chrono::milliseconds kRest{10};
  std::vector<std::vector<double>> samples(turns.size());
  for (const auto& once : turns) once();  // memory is taken, pages are touched
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (turns.size() > 1) {
        std::this_thread::sleep_for(kRest);
        turns[i]();  // wakes the threads
      }
      double total = 0;
      int n = 0;
      for (; total < kTurnSeconds; ++n) total += turns[i]();
      samples[i].push_back(total / n);
    }
  std::vector<Timing> timings;
  for (auto& s : samples) timings.push_back(timing_of(std::move(s)));
  return timings;
}

void Report::begin(const std::string& group) {
  peak_ = {};
  least_.clear();
  measure_peaks(10);
  const std::string bf16 =
      peak_.bf16_flops > 0 ? fmt::format(", {:.0f} GFLOP/s (bf16 pairs)", peak_.bf16_flops / 1e9) : "";
  const bool cpu = on_cpu(device_);
  fmt::print("{}: peak at this moment {:.0f} GFLOP/s ({}){}, {:.1f} GB/s ({})\n", group, peak_.flops / 1e9,
             cpu ? "f32 multiply-add" : "a product of large matrices", bf16, peak_.bytes / 1e9, cpu ? "read" : "copy");
  std::fflush(stdout);
  note(group, "peak", {{"gflops", peak_.flops / 1e9}, {"gb_per_s", peak_.bytes / 1e9}});
  if (peak_.bf16_flops > 0) rows_.back()["bf16_gflops"] = peak_.bf16_flops / 1e9;
}

void Report::measure_peaks(int runs) {
  peak_.bytes = std::max(peak_.bytes, MemoryProbe(device_).bytes_per_second(runs));
  device_.release_idle();  // no part of a benchmark's memory
  measure_arithmetic(peak_, runs, device_);
}

void Report::add(const Result& r) {
  measure_arithmetic(peak_, 1, device_);
  Json row = {{"group", r.group}, {"name", r.name}, {"median_s", r.time.median}, {"best_s", r.time.best}};
  std::string line = fmt::format("  {:<48}{:>11.3f} ms (best {:.3f})", r.name, 1e3 * r.time.median, 1e3 * r.time.best);
  const auto rate = [&](const char* key, const char* unit, double work, double scale, double most) {
    if (work == 0) return;
    row[key] = work / r.time.median / scale;
    row[std::string("best_") + key] = work / r.time.best / scale;
    line += fmt::format("  {:.1f} {}", work / r.time.median / scale, unit);
    if (most == 0) return;
    row[std::string(key) + "_share_of_peak"] = work / r.time.median / most;
    line += fmt::format(" ({:.0f} %)", 100 * work / r.time.median / most);
  };
  rate("tokens_per_s", "tokens/s", r.tokens, 1, 0);
  rate("gflops", "GFLOP/s", r.flops, 1e9, peak_of(r.arithmetic.value_or(products_)));
  rate("gb_per_s", "GB/s", r.bytes, 1e9, peak_.bytes);
  for (const Peer& peer : r.peers) {
    const double ratio = peer.ratio(r.time);
    row["ratio_to_" + peer.name] = ratio;
    row[peer.name + "_median_s"] = peer.time.median;
    line += fmt::format("  {:.2f} x {}", ratio, peer.name);
    const auto [least, first] = least_.try_emplace(peer.name, Least{ratio, r.name});
    if (ratio < least->second.ratio) least->second = {ratio, r.name};
  }
  row.update(r.more);
  rows_.push_back(std::move(row));
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// 0 where it was not measured.
double Report::peak_of(Arithmetic a) const {
  if (on_cpu(device_)) return peak_.of(a);
  return a == products_ ? peak_.flops : 0;
}

void Report::note(const std::string& group, const std::string& name, const Json& numbers) {
  Json row = {{"group", group}, {"name", name}};
  row.update(numbers);
  rows_.push_back(std::move(row));
}

void Report::end_comparison() {
  for (const auto& [peer, least] : least_)
    fmt::print("  least ratio to {}: {:.2f} ({})\n", peer, least.ratio, least.row);
}

Share share_of_first(Report& report, const std::string& group, const std::string& work,
                     const std::vector<std::string>& names, const std::vector<double>& seconds,
                     const std::vector<double>& amounts, std::size_t i) {
  const Share share{seconds[i] / seconds[0], amounts[i] / amounts[0]};
  report.note(
      group, names[i] + " / " + names[0],
      {{"time_ratio", share.time}, {work + "_ratio", share.work}, {"time_per_work_ratio", share.time_for_work()}});
  return share;
}

}  // namespace grt
