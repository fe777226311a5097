#include "tools/bench/growth.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "core/threads.h"
#include "tools/bench/models.h"

namespace grt {
namespace {

// One size of an axis.
struct Point {
  std::int64_t value;
  Json config;
  StepShape shape;
  int threads;
};

struct Axis {
  std::string name, words;
  std::vector<Point> points;
};

struct Measured {
  double seconds, activation_bytes, flops;
};

// The base with one or more keys multiplied.
Point scaled(const Point& base, const std::vector<std::string>& keys, std::int64_t times, std::int64_t divided_by) {
  Point p = base;
  for (const std::string& key : keys) {
    const std::int64_t from = base.config[key];
    p.config[key] = from * times / divided_by;
  }
  p.value = p.config[keys[0]];
  return p;
}

std::vector<Axis> axes_of(const Json& config, const StepShape& shape, const Device& device) {
  const Point base{0, config, shape, thread_count()};
  const bool recurrent = config.contains("n_recurrences");
  const std::string depth = recurrent ? "n_recurrences" : "n_layers";
  Axis length{"T", "context length", {}}, width{"d", "width, heads of one size", {}}, vocab{"V", "vocabulary", {}},
      deep{recurrent ? "R" : "L", recurrent ? "recurrences" : "layers", {}},
      kept{deep.name + " --recompute", deep.words + ", activations computed again", {}},
      threads{"threads", "threads", {}};
  for (const int quarters : {1, 2, 4, 8, 16}) length.points.push_back(scaled(base, {"context_length"}, quarters, 4));
  for (const int times : {1, 2, 4}) width.points.push_back(scaled(base, {"d_model", "n_heads"}, times, 1));
  for (const int times : {1, 4, 16, 64})
    vocab.points.push_back(scaled(base, {"vocab_size", "padded_vocab_size"}, times, 1));
  for (const int r : {1, 2, 4, 8, 16}) {
    Point p = base;
    p.value = p.config[depth] = r;
    deep.points.push_back(p);
    p.shape.recompute = true;
    kept.points.push_back(p);
  }
  std::vector<Axis> axes = {length, width, vocab, deep, kept};
  if (!on_cpu(device)) return axes;
  for (int n = 1; n <= thread_count(); n *= 2) {
    threads.points.push_back(base);
    threads.points.back().value = threads.points.back().threads = n;
  }
  axes.push_back(threads);
  return axes;
}

std::vector<Measured> measure(const Axis& axis, int rounds, Device& device) {
  std::vector<std::unique_ptr<TrainingStep>> steps;
  std::vector<std::function<double()>> turns;
  std::vector<double> activations;
  for (const Point& p : axis.points) {
    steps.push_back(std::make_unique<TrainingStep>(p.config, "bench growth", p.shape, device));
    set_thread_count(p.threads);
    for (int i = 0; i < 2; ++i) steps.back()->run();  // the second as in a run, where panels stay from step to step
    activations.push_back(steps.back()->activation_bytes());
    turns.push_back([step = steps.back().get(), threads = p.threads] {
      set_thread_count(threads);
      return step->run();
    });
  }
  const std::vector<Timing> times = take_turns(rounds, turns);
  std::vector<Measured> measured;
  for (std::size_t i = 0; i < times.size(); ++i)
    measured.push_back({times[i].median, activations[i], steps[i]->executed_flops()});
  return measured;
}

// Of activations, for each further step in depth: in states, the (B, T, d) tensors of f32 that a step passes on.
double states_per_step(const Axis& axis, const std::vector<Measured>& measured, std::size_t i) {
  const Point& p = axis.points[i];
  const double state = sizeof(float) * static_cast<double>(p.shape.batch_size) *
                       p.config["context_length"].get<double>() * p.config["d_model"].get<double>();
  return (measured[i].activation_bytes - measured[i - 1].activation_bytes) /
         static_cast<double>(p.value - axis.points[i - 1].value) / state;
}

void add_rows(const Axis& axis, const std::vector<Measured>& measured, Report& report) {
  const bool deep = axis.name[0] == 'R' || axis.name[0] == 'L';
  fmt::print("\n  {:<14}{:>12}{:>9}{:>14}{:>9}{:>16}{:>9}{}\n", axis.name, "ms a step", "growth", "MFLOP a step",
             "growth", "activations", "growth", deep ? "   states a step" : "");
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const Measured &now = measured[i], &before = measured[i > 0 ? i - 1 : 0];
    Json row = {{"value", axis.points[i].value},
                {"median_s", now.seconds},
                {"flops", now.flops},
                {"activation_bytes", now.activation_bytes}};
    std::string states;
    if (i > 0) {
      row.update({{"time_growth", now.seconds / before.seconds},
                  {"flops_growth", now.flops / before.flops},
                  {"memory_growth", now.activation_bytes / before.activation_bytes}});
      if (deep) {
        row["states_per_step"] = states_per_step(axis, measured, i);
        states = fmt::format("{:>16.2f}", row["states_per_step"].get<double>());
      }
    }
    report.note("growth", fmt::format("{} {}", axis.name, axis.points[i].value), row);
    const auto growth = [&](double a, double b) {
      return i > 0 ? fmt::format("{:>9.2f}", a / b) : std::string(9, ' ');
    };
    fmt::print("  {:<14}{:>12.2f}{}{:>14.1f}{}{:>13.2f} MB{}{}\n", axis.points[i].value, 1e3 * now.seconds,
               growth(now.seconds, before.seconds), now.flops / 1e6, growth(now.flops, before.flops),
               now.activation_bytes / 1e6, growth(now.activation_bytes, before.activation_bytes), states);
  }
}

}  // namespace

void bench_growth(const std::string& model, const StepShape& shape, int rounds, Device& device, Report& report) {
  Json config = find_model(model);
  if (shape.context_length > 0) config["context_length"] = shape.context_length;
  config = make_model(config, "--model " + model)->config_json();
  StepShape own = shape;
  own.context_length = 0;  // the configuration's
  report.begin("growth");
  fmt::print("  training steps of {}, batch size {}, medians; growth: over the row before\n", model, shape.batch_size);
  const int threads = thread_count();
  for (const Axis& axis : axes_of(config, own, device)) {
    add_rows(axis, measure(axis, rounds, device), report);
    set_thread_count(threads);
    device.release_idle();
  }
  if (!on_cpu(device)) fmt::print("\n  threads: left out, for growth over them is that of the CPU\n");
}

}  // namespace grt
