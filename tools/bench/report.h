// Timings, the rates that follow from them, and their shares of what this machine can do at best.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/tensor.h"

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

Timing timing_of(std::vector<double> samples);

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

// Which rows of a group are timed, and how often.
struct RowChoice {
  std::string filter;  // a part of the row's name
  int rounds;

  bool wants(const std::string& name) const { return name.find(filter) != name.npos; }
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
  void begin(const std::string& group);
  // Raises the peaks to the best of some more short runs; most are disturbed.
  void measure_peaks(int runs);
  void add(const Result& result);
  // A row of the file alone.
  void note(const std::string& group, const std::string& name, const Json& numbers);

  const Json& rows() const { return rows_; }

 private:
  void measure_arithmetic_peak(int runs);

  Device& device_;
  Peak peak_{};
  Json rows_ = Json::array();
};

// Of one model against the first: its share of time beside its share of work.
struct Share {
  double time, work;
  double time_for_work() const { return time / work; }
};

// The share of the i-th of `names`, also as a row of the file; `work` names what `amounts` are.
Share share_of_first(Report& report, const std::string& group, const std::string& work,
                     const std::vector<std::string>& names, const std::vector<double>& seconds,
                     const std::vector<double>& amounts, std::size_t i);

}  // namespace grt
