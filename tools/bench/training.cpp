#include "tools/bench/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "core/memory.h"
#include "train/optimizer.h"

namespace grt {
namespace {

// Whole training steps at full depth with noise: forward, backward, gradient norm, clipping, AdamW.
class TrainingSteps {
 public:
  TrainingSteps(const std::string& name, const ModelBench& bench, Device& device)
      : name_(name),
        model_(bench_model(name, bench.context_length, device)),
        device_(device),
        optimizer_(with_gradients(model_->params()), {0.9, 0.95, 1e-8, 0.1, 1.0}) {
    const Shape shape{bench.batch_size, model_->config().context_length};
    inputs_ = random_ids(shape, model_->config().vocab_size, 1, device);
    targets_ = random_ids(shape, model_->config().vocab_size, 2, device);
    seed_ = Tensor::from<float>({1}, std::vector<float>{1}, device);
    flops_per_token_ = model_->training_flops(model_->config().context_length, model_->depths().full);
  }

  // Seconds of one step.
  double run() {
    const std::size_t before = device_.in_use();
    device_.reset_peak();
    const double seconds = seconds_of([&] {
      Params& params = model_->params();
      params.clear_gradients();
      const Pass pass{.training = true, .key = {1337, static_cast<std::uint32_t>(step_), 0}};
      Tape tape;
      Var loss;
      {
        Record on(&tape);
        loss = model_->loss(inputs_, targets_, model_->depths().full, pass);
      }
      tape.backward(loss, seed_);
      params.complete_gradients();
      optimizer_.update(step_++, 1e-4, optimizer_.gradient_norm());
    });
    activations_ = std::max(activations_, static_cast<double>(device_.peak() - before));
    resident_ = peak_resident_memory();
    samples_.push_back(seconds);
    return seconds;
  }

  void forget_samples() { samples_.clear(); }
  double median() const { return timing_of(samples_).median; }
  double tokens() const { return static_cast<double>(inputs_.numel()); }
  double state_bytes() const { return 4 * static_cast<double>(model_->params().values().bytes()); }
  double peak_bytes() const { return state_bytes() + activations_; }
  double executed_flops() const { return tokens() * flops_per_token_; }
  // The convention of nanoGPT and PaLM (6 N + 12 L d T for each token, attention uncut), for comparisons with others.
  double convention_flops() const {
    const Flops f = flops();
    return 3 * tokens() * (f.paper_body + f.paper_head);
  }
  const std::string& name() const { return name_; }

  Result result() const {
    const Timing time = timing_of(samples_);
    Json more = {{"batch_size", inputs_.dim(0)},
                 {"context_length", inputs_.dim(1)},
                 {"convention_gflops", convention_flops() / time.median / 1e9},
                 {"weights_gradients_moments_bytes", state_bytes()},
                 {"activation_bytes", activations_},
                 {"peak_device_bytes", peak_bytes()},
                 {"peak_resident_bytes", resident_}};
    return {"train",
            fmt::format("{}, {} x {}", name_, inputs_.dim(0), inputs_.dim(1)),
            time,
            executed_flops(),
            0,
            tokens(),
            std::move(more)};
  }

 private:
  static Params& with_gradients(Params& params) {
    params.allocate_gradients();
    return params;
  }
  Flops flops() const { return model_->flops(model_->config().context_length, model_->depths().full); }

  std::string name_;
  std::unique_ptr<LanguageModel> model_;
  Device& device_;
  Optimizer optimizer_;
  Tensor inputs_, targets_, seed_;
  std::int64_t step_ = 0;
  double flops_per_token_ = 0, activations_ = 0;
  std::int64_t resident_ = 0;
  std::vector<double> samples_;
};

// What a step of each model costs beside the first model's.
void print_training_table(Report& report, const std::vector<std::unique_ptr<TrainingSteps>>& all) {
  std::vector<std::string> names;
  std::vector<double> seconds, flops;
  for (const auto& steps : all) {
    names.push_back(steps->name());
    seconds.push_back(steps->median());
    flops.push_back(steps->executed_flops());
  }
  fmt::print("\n  {:<22}{:>10}{:>13}{:>13}{:>10}{:>10}{:>14}\n", "model", "tokens/s", "peak memory", "MFLOP/token",
             "time", "FLOPs", "time / FLOPs");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Share share = share_of_first(report, "train", "executed_flops", names, seconds, flops, i);
    const double tokens = all[i]->tokens();
    fmt::print("  {:<22}{:>10.0f}{:>10.2f} GB{:>13.2f}{:>10.3f}{:>10.3f}{:>14.3f}\n", names[i], tokens / seconds[i],
               all[i]->peak_bytes() / 1e9, flops[i] / tokens / 1e6, share.time, share.work, share.time_for_work());
  }
  fmt::print("  time and executed FLOPs of a step are relative to {}; medians of rounds in which all take turns\n",
             names[0]);
}

}  // namespace

void bench_train(const ModelBench& bench, Device& device, Report& report) {
  report.begin("train");
  std::vector<std::unique_ptr<TrainingSteps>> all;
  for (const std::string& name : bench.models) {
    all.push_back(std::make_unique<TrainingSteps>(name, bench, device));
    all.back()->run();
    all.back()->forget_samples();
  }
  for (int round = 0; round < bench.rounds; ++round)  // taking turns, so that a disturbance meets all of them
    for (const auto& steps : all) steps->run();

  report.measure_peaks(10);

  for (const auto& steps : all) {
    const Result r = steps->result();
    report.add(r);
    fmt::print(
        "  {:<48}{:.1f} GFLOP/s by 6 N + 12 L d T; memory: {:.2f} GB state + {:.2f} GB activations; resident {:.2f} "
        "GB\n",
        "", r.more["convention_gflops"].get<double>(), r.more["weights_gradients_moments_bytes"].get<double>() / 1e9,
        r.more["activation_bytes"].get<double>() / 1e9, r.more["peak_resident_bytes"].get<double>() / 1e9);
  }
  if (all.size() > 1) print_training_table(report, all);
}

void train_on_request(const ModelBench& bench, Device& device) {
  TrainingSteps steps(bench.models[0], bench, device);
  steps.run();
  const auto answer = [&](double seconds) {
    fmt::print("{}\n",
               Json{{"seconds", seconds}, {"tokens", steps.tokens()}, {"peak_bytes", peak_resident_memory()}}.dump());
    std::fflush(stdout);
  };
  answer(0);
  for (std::string line; std::getline(std::cin, line);) answer(steps.run());
}

}  // namespace grt
