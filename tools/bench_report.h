// Timings, the rates that follow from them, and their shares of what this machine can do at best.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "ops/cpu/peak.h"

namespace grt {

using Clock = std::chrono::steady_clock;

template <class F>
double seconds_of(F&& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Timing {  // seconds
  double median = 0, best = 0;
};

inline Timing timing_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {(samples[n / 2] + samples[(n - 1) / 2]) / 2, samples[0]};
}

// `once()` runs the work and returns the seconds it took. What is short is repeated within a round until the clock's
// resolution and the wake-up of threads do not matter.
template <class F>
Timing sample(int rounds, F&& once) {
  constexpr double kRoundSeconds = 0.01;
  once();  // memory is taken, pages are touched
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) {
    double total = 0;
    int n = 0;
    for (; total < kRoundSeconds; ++n) total += once();
    samples.push_back(total / n);
  }
  return timing_of(std::move(samples));
}

struct Peak {  // per second
  double flops, bytes;
};

// What was timed. Work that does not apply is 0 and is not shown.
struct Result {
  std::string group, name;
  Timing time;
  double flops = 0, bytes = 0;  // of one run
  double tokens = 0;            // of one run
  Json more = Json::object();   // further numbers
};

class Report {
 public:
  explicit Report(Device& device) : device_(device) {}

  // The peaks are those of the group's minutes: what else a shared machine does changes all the time.
  void begin(const std::string& group) {
    peak_ = {};
    measure_peaks(10);
    fmt::print("{}: peak at this moment {:.0f} GFLOP/s (f32 multiply-add), {:.1f} GB/s (read)\n", group,
               peak_.flops / 1e9, peak_.bytes / 1e9);
    rows_.push_back(
        {{"group", group}, {"name", "peak"}, {"gflops", peak_.flops / 1e9}, {"gb_per_s", peak_.bytes / 1e9}});
  }

  // Raises the peaks to the best of some more short runs; most are disturbed.
  void measure_peaks(int runs) {
    {
      const Tensor memory = Tensor::zeros({1 << 26}, DType::f32, device_);  // 256 MiB: beyond any cache
      for (int i = 0; i < runs; ++i) {
        double bytes = 0;
        const double seconds = seconds_of([&] { bytes = cpu::run_reads(memory); });
        peak_.bytes = std::max(peak_.bytes, bytes / seconds);
      }
    }
    device_.release_idle();  // no part of a benchmark's memory
    measure_arithmetic_peak(runs);
  }

  void add(const Result& r) {
    measure_arithmetic_peak(1);
    Json row = {{"group", r.group}, {"name", r.name}, {"median_s", r.time.median}, {"best_s", r.time.best}};
    std::string line =
        fmt::format("  {:<48}{:>11.3f} ms (best {:.3f})", r.name, 1e3 * r.time.median, 1e3 * r.time.best);
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
    rate("gflops", "GFLOP/s", r.flops, 1e9, peak_.flops);
    rate("gb_per_s", "GB/s", r.bytes, 1e9, peak_.bytes);
    row.update(r.more);
    rows_.push_back(std::move(row));
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  // A row of the file alone.
  void note(const std::string& group, const std::string& name, const Json& numbers) {
    Json row = {{"group", group}, {"name", name}};
    row.update(numbers);
    rows_.push_back(std::move(row));
  }

  const Json& rows() const { return rows_; }

 private:
  void measure_arithmetic_peak(int runs) {
    for (int i = 0; i < runs; ++i) {
      double flops = 0;
      const double seconds = seconds_of([&] { flops = cpu::run_multiply_adds(); });
      peak_.flops = std::max(peak_.flops, flops / seconds);
    }
  }

  Device& device_;
  Peak peak_{};
  Json rows_ = Json::array();
};

}  // namespace grt
