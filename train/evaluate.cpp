// Windows in batches, every depth from one forward pass, and sums in the order of the windows: since a kernel gives a
// row the same bits whatever else is in the batch, results are bit-equal for any batch size.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>

#include "train/host.h"
#include "train/routes.h"

namespace grt {
namespace {

// Mean and spread of the losses of one depth.
class Tally {
 public:
  void add(double loss) {
    ++count_;
    sum_ += loss;
    squares_ += loss * loss;
  }
  DepthLoss result() const {
    const double n = static_cast<double>(count_), mean = sum_ / n;
    const double variance = count_ > 1 ? (squares_ - n * mean * mean) / (n - 1) : 0;
    return {mean, std::sqrt(variance < 0 ? 0 : variance / n)};  // NaN stays NaN
  }

 private:
  std::int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
};

// Calls f(row) for each row of a batch of windows whose target comes after the first `scored` ones.
template <class F>
void for_scored_rows(std::span<const Window> part, std::int64_t scored, F&& f) {
  std::int64_t first_row = 0;
  for (const Window& window : part) {
    for (std::int64_t t = scored - window.begin; t < window.targets; ++t) f(static_cast<std::size_t>(first_row + t));
    scored = window.begin + window.targets;
    first_row += window.targets;
  }
}

// A window every `stride` ids, up to the first that reaches the end.
std::vector<Window> overlapping_windows(std::int64_t tokens, std::int64_t context_length, std::int64_t stride) {
  std::vector<Window> windows;
  for (std::int64_t begin = 0;; begin += stride) {
    windows.push_back({begin, std::min(context_length, tokens - 1 - begin)});
    if (begin + windows.back().targets == tokens - 1) return windows;
  }
}

}  // namespace

void check_options(const LanguageModel& model, const EvalOptions& options) {
  const std::int64_t T = model.config().context_length;
  check(!options.depths.empty(), "evaluation: no depth is given");
  check(std::is_sorted(options.depths.begin(), options.depths.end()), "evaluation: the depths must ascend");
  for (const int depth : options.depths) model.check_depth(depth);
  check(options.batch_size >= 1, "--batch-size: must be at least 1, not {}", options.batch_size);
  check(options.stride >= 0 && options.stride <= T, "--stride: must be 1..{}, the model's context length, not {}", T,
        options.stride);
  model.check_kv(options.kv);
  if (!options.forced_gate) return;
  check(model.config_json().value("use_gate", false), "--forced-gate: this {} model has no gate",
        model.config().architecture);
  check(*options.forced_gate >= 0 && *options.forced_gate <= 1, "--forced-gate: must be 0..1, not {}",
        *options.forced_gate);
}

void decode_exits(const LanguageModel& model, const Tensor& tokens, std::span<const int> depths, const Pass& pass,
                  KvStrategy kv, const LanguageModel::Visit& visit) {
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1), width = model.config().d_model;
  Device& device = model.device();
  const auto copy = [&](const Tensor& to, const Tensor& from) { device.copy(to.raw(), from.raw(), to.bytes()); };
  for (const int depth : depths) {
    KvCache cache = model.make_cache(batch, time, depth, kv);
    Pass step = pass;
    step.cache = &cache;
    const Tensor all = Tensor::empty({batch, time, width}, model.params().values().dtype(), device);
    const Tensor column = Tensor::empty({batch, 1}, DType::i32, device);
    for (std::int64_t t = 0; t < time; ++t) {
      const auto at = [&](std::int64_t b) { return b * time + t; };
      for (std::int64_t b = 0; b < batch; ++b) copy(column.range(b, {1}), tokens.range(at(b), {1}));
      const Tensor z = model.hidden(column, depth, step).value();
      for (std::int64_t b = 0; b < batch; ++b) copy(all.range(at(b) * width, {width}), z.range(b * width, {width}));
    }
    visit(depth, all);
  }
}

void add_routes(Json& record, const EvalResult& result) {
  if (result.depth_histogram.empty()) return;
  Json& histogram = record["depth_histogram"] = Json::object();
  for (const auto& [steps, share] : result.depth_histogram) histogram[std::to_string(steps)] = share;
  record["router_entropy"] = result.router_entropy ? Json(*result.router_entropy) : Json(nullptr);
}

EvalResult evaluate(const LanguageModel& model, const TokenData& data, const EvalOptions& options) {
  check_options(model, options);
  const std::int64_t T = model.config().context_length;
  const std::vector<Window> windows =
      options.stride > 0 ? overlapping_windows(data.size(), T, options.stride) : evaluation_windows(data.size(), T);
  auto batches = evaluation_batches(windows, options.batch_size);
  if (options.most_batches > 0 && options.most_batches < static_cast<std::int64_t>(batches.size()))
    batches.resize(static_cast<std::size_t>(options.most_batches));
  const std::int64_t all = batches.back().data() + batches.back().size() - windows.data();

  Pass pass;
  pass.forced_gate = options.forced_gate;
  pass.key.seed = options.seed;
  pass.causal_routing = options.causal_routing;
  std::map<int, Tally> tallies;
  std::map<std::string, Tally> further;
  EvalResult result;
  std::map<int, std::int64_t> by_steps;
  Routes routes;
  std::int64_t scored = 0;  // ids [1, scored] have been targets
  for (const std::span<const Window> part : batches) {
    const Batch batch = evaluation_batch(data, part, model.device());
    const auto add = [&](Tally& tally, const Tensor& rows) {
      const std::vector<double> losses = host_values(rows);
      for_scored_rows(part, scored, [&](std::size_t row) { tally.add(losses[row]); });
    };
    if (options.causal_routing) pass.look = routes.next(batch.tokens.dim(0), batch.tokens.dim(1));
    const auto visit = [&](int depth, const Var& z) { add(tallies[depth], model.losses(z.value(), batch.targets)); };
    if (options.kv == KvStrategy::full)
      model.exits(batch.tokens, options.depths, pass, visit);
    else
      decode_exits(model, batch.tokens, options.depths, pass, options.kv, visit);
    if (options.further && options.kv == KvStrategy::full)
      for (const auto& [name, losses] : model.further_losses(batch.tokens, batch.targets, pass))
        add(further[name], losses);
    if (!routes.steps().empty())
      for_scored_rows(part, scored, [&](std::size_t row) { ++by_steps[routes.steps()[row]]; });
    scored = part.back().begin + part.back().targets;
    result.windows += static_cast<std::int64_t>(part.size());
    if (options.progress && !options.progress(result.windows, all)) break;
  }
  for (const auto& [depth, tally] : tallies) result.by_depth[depth] = tally.result();
  for (const auto& [name, tally] : further) result.further[name] = tally.result();
  for (const auto& [steps, count] : by_steps)
    result.depth_histogram[steps] = static_cast<double>(count) / static_cast<double>(scored);
  result.router_entropy = routes.entropy();
  result.tokens = scored;
  return result;
}

}  // namespace grt
