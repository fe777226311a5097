#include "tools/bench/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "core/memory.h"
#include "ops/hold.h"
#include "tools/bench/models.h"
#include "tools/bench/report.h"

namespace grt {

TrainingStep::TrainingStep(const std::string& model, const StepShape& shape, Device& device)
    : TrainingStep(find_model(model), "--model " + model, shape, device) {}

TrainingStep::TrainingStep(Json json, const std::string& where, const StepShape& shape, Device& device)
    : device_(device),
      model_(bench_model(std::move(json), where, shape.context_length, device)),
      optimizer_(with_gradients(model_->params()), {0.9, 0.95, 1e-8, 0.1, 1.0}),
      recompute_(shape.recompute),
      noise_seed_(device),
      graphs_(device) {
  const BackboneConfig& config = model_->config();
  const Shape ids{shape.batch_size, config.context_length};
  inputs_ = random_ids(ids, config.vocab_size, 1, device);
  targets_ = random_ids(ids, config.vocab_size, 2, device);
  seed_ = Tensor::from<float>({1}, std::vector<float>{1}, device);
  flops_per_token_ = model_->training_flops(config.context_length, model_->depths().full);
}

Params& TrainingStep::with_gradients(Params& params) {
  params.allocate_gradients();
  return params;
}

double TrainingStep::run() {
  const std::size_t before = device_.in_use();
  device_.reset_peak();
  const double seconds = seconds_of([&] {
    Params& params = model_->params();
    params.clear_gradients();
    if (device_.uses_graphs()) params.complete_gradients();  // as in train/trainer.cpp
    noise_seed_.set(static_cast<std::uint64_t>(step_));
    graphs_.run(0, [&] {
      const Hold forward(params.values(), recompute_);
      const Pass pass{.training = true, .key = {noise_seed_, 0, 0}, .recompute = recompute_};
      Tape tape;
      Var loss;
      {
        Record on(&tape);
        loss = model_->loss(inputs_, targets_, model_->depths().full, pass);
      }
      const Hold backward(params.values(), recompute_);
      tape.backward(loss, seed_);
    });
    params.complete_gradients();
    optimizer_.update(step_++, 1e-4);
    device_.sync();
  });
  // The first step also takes what stays for later ones, the panels of kept weights.
  const auto taken = static_cast<double>(device_.peak() - before);
  activations_ = step_ <= 2 ? taken : std::max(activations_, taken);
  peak_ = std::max(peak_, static_cast<double>(device_.peak()));
  return seconds;
}

double TrainingStep::peak_bytes() const {
  return on_cpu(device_) ? static_cast<double>(peak_resident_memory()) : peak_;
}

double TrainingStep::convention_flops() const {
  const Flops f = model_->flops(model_->config().context_length, model_->depths().full);
  return 3 * tokens() * (f.paper_body + f.paper_head);
}

void train_on_request(const std::string& model, const StepShape& shape, Device& device) {
  TrainingStep step(model, shape, device);
  step.run();  // memory is taken, pages are touched
  const auto answer = [&](const Json& more) {
    Json line = {{"peak_resident_bytes", step.peak_bytes()}, {"activation_bytes", step.activation_bytes()}};
    line.update(more);
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  };
  const BackboneConfig& config = step.model().config();
  answer({{"batch_size", shape.batch_size},
          {"context_length", config.context_length},
          {"parameters", step.model().params().count()},
          {"flops", step.executed_flops()},
          {"convention_flops", step.convention_flops()},
          {"state_bytes", step.state_bytes()}});
  for (std::string line; std::getline(std::cin, line);) answer({{"seconds", step.run()}});
}

}  // namespace grt
