// Timings, the rates that follow from them, and their shares of what this machine can do at best.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "tools/bench/clock.h"
#include "tools/bench/peaks.h"

namespace grt {

struct Timing {  // seconds
  double median = 0, best = 0;
};

Timing timing_of(std::vector<double> samples);

// Each of `turns` runs its work and returns the seconds it took. They take turns, so that a disturbance meets all of
// them; the timing of each over the rounds. What is short is repeated within a turn until the clock's resolution and
// the wake-up of threads do not matter; before a turn there is a rest, in which the threads of the one before fall
// asleep.
std::vector<Timing> take_turns(int rounds, std::span<const std::function<double()>> turns);
inline Timing sample(int rounds, const std::function<double()>& once) { return take_turns(rounds, {&once, 1})[0]; }

// Another's time for the same work, of the same rounds.
struct Peer {
  std::string name;
  Timing time;
  double ratio(const Timing& own) const { return time.median / own.median; }  // above 1: we are faster
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
  std::vector<Peer> peers = {};
  std::optional<Arithmetic> arithmetic = {};  // whose peak the flops are a share of; absent: the device's
};

class Report {
 public:
  // products: what the factors of `device`'s products are rounded to.
  explicit Report(Device& device, Arithmetic products = Arithmetic::f32) : device_(device), products_(products) {}

  // The peaks are those of the group's minutes: what else a shared machine does changes all the time.
  void begin(const std::string& group);
  // Raises the peaks to the best of some more short runs; most are disturbed.
  void measure_peaks(int runs);
  void add(const Result& result);
  // The least ratio to each peer in the rows since begin(), if there was one.
  void end_comparison();
  // A row of the file alone.
  void note(const std::string& group, const std::string& name, const Json& numbers);

  const Peak& peak() const { return peak_; }
  const Json& rows() const { return rows_; }

 private:
  double peak_of(Arithmetic a) const;

  Device& device_;
  Arithmetic products_;
  Peak peak_;
  struct Least {
    double ratio;
    std::string row;
  };
  std::map<std::string, Least> least_;  // by peer
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
