#include "train/memory_plan.h"

#include <algorithm>
#include <optional>

#include "ops/hold.h"
#include "ops/plan.h"

namespace grt {

std::int64_t MemoryPlan::total() const {
  std::int64_t deepest = 0;
  for (const auto& [depth, bytes] : activations) deepest = std::max(deepest, bytes);
  return weights + gradients + moments + teacher + held + reserve + deepest;
}

MemoryPlan plan_memory(const MemoryNeeds& needs) {
  const std::unique_ptr<Device> device = open_plan(needs.keeps);
  const std::unique_ptr<LanguageModel> model = make_model(needs.model, "memory plan");
  Params& params = model->params();
  params.allocate(*device, needs.dtype);
  const auto weights = static_cast<std::int64_t>(device->in_use());
  params.allocate_gradients(needs.trained_prefix);
  const auto gradients = static_cast<std::int64_t>(device->in_use()) - weights;

  MemoryPlan plan{weights, gradients, 2 * weights / needs.moment_shares, {}};
  std::unique_ptr<LanguageModel> teacher;
  if (!needs.teacher.is_null()) {
    const std::size_t before = device->in_use();
    teacher = make_model(needs.teacher, "memory plan");
    teacher->params().allocate(*device, needs.dtype);
    plan.teacher = static_cast<std::int64_t>(device->in_use() - before);
  }
  const std::int64_t time = model->config().context_length;
  const Tensor tokens = Tensor::empty({needs.batch_size, time}, DType::i32, *device);
  const auto rehearse = [&](int depth) {
    const Hold forward(params.values(), needs.recompute);
    Tape tape;
    Var loss;
    {
      Pass pass{.training = true, .recompute = needs.recompute, .exit_gate_alone = !needs.trained_prefix.empty()};
      std::optional<Teacher> taught;
      if (teacher) pass.teacher = &taught.emplace(teacher->teach(tokens, {}));
      Record on(&tape);
      loss = model->loss(tokens, tokens, depth, pass);
    }
    const Hold backward(params.values(), needs.recompute);
    tape.backward(loss, Tensor::empty({1}, needs.dtype, *device));
    params.clear_gradients();
  };
  if (needs.keeps != Keeps::nothing) {
    const std::size_t before = device->in_use();
    rehearse(*std::max_element(needs.depths.begin(), needs.depths.end()));
    plan.held = static_cast<std::int64_t>(device->in_use() - before);
  }
  for (const int depth : needs.depths) {
    const std::size_t before = device->in_use();
    device->reset_peak();
    rehearse(depth);
    plan.activations[depth] = static_cast<std::int64_t>(device->peak() - before);
  }
  if (needs.gpu) {
    device->reset_peak();
    const auto before = static_cast<std::int64_t>(device->peak());
    model->loss(tokens, tokens, *std::max_element(needs.depths.begin(), needs.depths.end()), {});
    const std::int64_t validation = static_cast<std::int64_t>(device->peak()) - before;
    const std::int64_t gathered = needs.moment_shares > 1 ? 2 * weights : 0;  // to be saved
    plan.reserve = kGpuReserve + std::max(validation, gathered);
  }
  return plan;
}

std::string describe(const MemoryPlan& plan) {
  std::string text = fmt::format("memory: weights {}, gradients {}, moments {}, ", human_bytes(plan.weights),
                                 human_bytes(plan.gradients), human_bytes(plan.moments));
  if (plan.teacher > 0) text += fmt::format("teacher {}, ", human_bytes(plan.teacher));
  if (plan.held > 0) text += fmt::format("held weights {}, ", human_bytes(plan.held));
  if (plan.reserve > 0) text += fmt::format("GPU libraries and validation {}, ", human_bytes(plan.reserve));
  text += "activations at depth";
  for (const auto& [depth, bytes] : plan.activations) text += fmt::format(" {}: {},", depth, human_bytes(bytes));
  text.pop_back();
  return text + fmt::format("; together {}\n", human_bytes(plan.total()));
}

void check_fits(const MemoryPlan& plan, const MemoryNeeds& needs, std::int64_t available) {
  if (plan.total() <= available) return;
  MemoryNeeds smaller = needs;
  std::int64_t fits = 0;
  for (std::int64_t low = 1, high = needs.batch_size - 1; low <= high;) {
    smaller.batch_size = (low + high) / 2;
    if (plan_memory(smaller).total() <= available) {
      fits = smaller.batch_size;
      low = smaller.batch_size + 1;
    } else {
      high = smaller.batch_size - 1;
    }
  }
  fail("--batch-size {}: the run needs {}{} and {} are available; {}", needs.batch_size, human_bytes(plan.total()),
       plan.reserve > 0 ? fmt::format(" ({} of it for the GPU's libraries and validation)", human_bytes(plan.reserve))
                        : "",
       human_bytes(available),
       fits > 0 ? fmt::format("--batch-size {} fits (raise --grad-accum to make up for it{})", fits,
                              needs.recompute ? "" : ", or try --recompute")
                : "not even a batch of 1 fits: try --recompute or a smaller model");
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 5) bytes /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

}  // namespace grt
