// Windows in batches, every depth from one forward pass, and sums over each window, added in the order of the windows:
// since a kernel gives a row the same bits whatever else is in the batch, results are bit-equal for any batch size and
// any number of ranks.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/host.h"
#include "train/routes.h"

namespace grt {
namespace {

// Mean and standard error of the losses of one depth, from the sums over windows, which ranks can share.
class Tally {
 public:
  void add(std::size_t window, double loss) {
    if (sums_.size() < 2 * (window + 1)) sums_.resize(2 * (window + 1));
    sums_[2 * window] += loss;
    ++sums_[2 * window + 1];
  }
  void share(Comm& comm, std::int64_t windows) {
    sums_.resize(2 * static_cast<std::size_t>(windows));
    comm.sum(sums_);
  }
  // Tokens of a window are alike, windows are not: the error is that of a ratio of sums over windows (Cochran
  // 1977, 6.4).
  DepthLoss result() const {
    double sum = 0, tokens = 0, windows = 0, squares = 0;
    for (std::size_t i = 0; i < sums_.size(); i += 2) {
      sum += sums_[i];
      tokens += sums_[i + 1];
      windows += sums_[i + 1] > 0;
    }
    const double mean = sum / tokens;
    for (std::size_t i = 0; i < sums_.size(); i += 2) squares += std::pow(sums_[i] - sums_[i + 1] * mean, 2);
    if (windows < 2) return {mean, std::numeric_limits<double>::quiet_NaN()};
    return {mean, std::sqrt(squares * windows / (windows - 1)) / tokens};
  }

 private:
  std::vector<double> sums_;  // of losses, and how many they are, a pair for each window
};

// What an evaluation adds up, batch by batch.
struct Totals {
  explicit Totals(const std::vector<int>& depths) : by_steps(static_cast<std::size_t>(depths.back()) + 1) {
    for (const int depth : depths) by_depth[depth];
  }
  // A predicted token, in this row of the pass.
  void count(std::size_t row) {
    ++tokens;
    if (!routes.steps().empty()) ++by_steps[routes.steps()[row]];
  }
  void share(Comm& comm, std::int64_t all_windows) {
    check(further.empty() || comm.size() == 1, "evaluation: further losses are those of one rank");
    for (auto& [depth, tally] : by_depth) tally.share(comm, all_windows);
    for (std::int64_t* n : {&tokens, &windows}) comm.sum(std::span(n, 1));
    comm.sum(by_steps);
    routes.share(comm);
  }
  EvalResult result() const {
    EvalResult result;
    for (const auto& [depth, tally] : by_depth) result.by_depth[depth] = tally.result();
    for (const auto& [name, tally] : further) result.further[name] = tally.result();
    for (std::size_t steps = 0; steps < by_steps.size(); ++steps)
      if (by_steps[steps] > 0)
        result.depth_histogram[static_cast<int>(steps)] =
            static_cast<double>(by_steps[steps]) / static_cast<double>(tokens);
    result.router_entropy = routes.entropy();
    result.tokens = tokens;
    result.windows = windows;
    return result;
  }

  std::map<int, Tally> by_depth;
  std::map<std::string, Tally> further;
  std::vector<std::int64_t> by_steps;  // tokens that took so many steps
  std::int64_t tokens = 0, windows = 0;
  Routes routes;
};

// Calls f(window, row) for each row of a batch, which is `part` of `windows`, whose target is in no earlier window.
template <class F>
void for_scored_rows(std::span<const Window> windows, std::span<const Window> part, F&& f) {
  auto index = static_cast<std::size_t>(part.data() - windows.data());
  std::int64_t first_row = 0, scored = index == 0 ? 0 : windows[index - 1].begin + windows[index - 1].targets;
  for (const Window& window : part) {
    for (std::int64_t t = scored - window.begin; t < window.targets; ++t)
      f(index, static_cast<std::size_t>(first_row + t));
    scored = window.begin + window.targets;
    first_row += window.targets;
    ++index;
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
  for (const ExitRule& rule : options.exits) check_exit(model, rule);
  check(options.exits.empty() || options.comm->size() == 1, "evaluation: exit rules are those of one rank");
  check(options.exits.empty() || options.exit_bound >= 1, "--exit: at --depth {} there is no step to stop before",
        options.exit_bound);
  if (!options.forced_gate) return;
  for (const ExitRule& rule : options.exits)
    check(rule.kind != HaltKind::gate, "--exit: {} looks at the gate, which --forced-gate takes away", text_of(rule));
  check(model.config_json().value("use_gate", false), "--forced-gate: this {} model has no gate",
        model.config().architecture);
  check(*options.forced_gate >= 0 && *options.forced_gate <= 1, "--forced-gate: must be 0..1, not {}",
        *options.forced_gate);
}

namespace {

// Feeds position after position of all sequences, each in one pass; fed(position) after each. (B, T, d)
template <class F>
Tensor feed_columns(const LanguageModel& model, const Tensor& tokens, int depth, const Pass& pass, F&& fed) {
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1), width = model.config().d_model;
  Device& device = model.device();
  const auto copy = [&](const Tensor& to, const Tensor& from) { device.copy(to.raw(), from.raw(), to.bytes()); };
  const Tensor all = Tensor::empty({batch, time, width}, model.params().values().dtype(), device);
  const Tensor column = Tensor::empty({1, batch}, DType::i32, device);
  for (std::int64_t t = 0; t < time; ++t) {
    for (std::int64_t b = 0; b < batch; ++b) {
      copy(column.range(b, {1}), tokens.range(b * time + t, {1}));
      pass.cache->expect(b, 1);
    }
    const Tensor z = model.hidden(column, depth, pass).value();
    for (std::int64_t b = 0; b < batch; ++b)
      copy(all.range((b * time + t) * width, {width}), z.range(b * width, {width}));
    fed(t);
  }
  return all;
}

// The likeliest id of each row, of equals the first.
std::vector<std::int32_t> likeliest(const LanguageModel& model, const Tensor& z) {
  constexpr std::int64_t kRows = 256;  // at a time
  const std::int64_t rows = z.shape().rows();
  std::vector<std::int32_t> ids;
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const Tensor logits = model.logits(z.rows(first, std::min(kRows, rows - first)));
    const std::vector<double> values = host_values(logits);
    for (auto row = values.begin(); row != values.end(); row += logits.shape().last())
      ids.push_back(static_cast<std::int32_t>(std::max_element(row, row + model.config().vocab_size) - row));
  }
  return ids;
}

}  // namespace

void decode_exits(const LanguageModel& model, const Tensor& tokens, std::span<const int> depths, const Pass& pass,
                  KvStrategy kv, const LanguageModel::Visit& visit) {
  for (const int depth : depths) {
    KvCache cache = model.make_cache(tokens.dim(0), tokens.dim(1), depth, kv);
    Pass step = pass;
    step.cache = &cache;
    visit(depth, feed_columns(model, tokens, depth, step, [](std::int64_t) {}));
  }
}

Halted decode_halting(const LanguageModel& model, const Tensor& tokens, int depth, const Pass& pass, KvStrategy kv,
                      const ExitRule& rule) {
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1);
  KvCache cache = model.make_cache(batch, time, depth, kv);
  Pass step = pass;
  step.cache = &cache;
  std::vector<int> depths(static_cast<std::size_t>(batch * time));
  std::optional<Halt> halt;
  halt.emplace(model, rule).enter(step);
  const Tensor z = feed_columns(model, tokens, depth, step, [&](std::int64_t t) {
    for (std::int64_t b = 0; b < batch; ++b) depths[b * time + t] = halt->depths().at(b);
    halt.emplace(model, rule).enter(step);
  });
  return {z, depths, cache.substituted()};
}

namespace {

// What becomes of the tokens that stop by each rule.
class ExitTallies {
 public:
  ExitTallies(const LanguageModel& model, const EvalOptions& options)
      : model_(model), options_(options), tallies_(options.exits.size()), results_(options.exits.size()) {}

  void add(const Batch& batch, const Pass& pass, std::span<const Window> windows, std::span<const Window> part) {
    std::vector<std::int32_t> bound;
    decode_exits(model_, batch.tokens, std::span(&options_.exit_bound, 1), pass, options_.kv,
                 [&](int, const Var& z) { bound = likeliest(model_, z.value()); });
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Halted halted =
          decode_halting(model_, batch.tokens, options_.exit_bound, pass, options_.kv, options_.exits[i]);
      const std::vector<double> losses = host_values(model_.losses(halted.z, batch.targets));
      const std::vector<std::int32_t> ids = likeliest(model_, halted.z);
      ExitResult& result = results_[i];
      result.substituted += halted.substituted;
      for_scored_rows(windows, part, [&](std::size_t window, std::size_t row) {
        tallies_[i].add(window, losses[row]);
        ++result.depths[halted.depths[row]];
        result.agreement += ids[row] == bound[row];
      });
    }
  }

  std::vector<ExitResult> results(std::int64_t tokens) {
    const double n = static_cast<double>(tokens);
    for (std::size_t i = 0; i < results_.size(); ++i) {
      ExitResult& result = results_[i];
      result.loss = tallies_[i].result();
      result.agreement /= n;
      for (auto& [depth, share] : result.depths) {
        share /= n;
        result.mean_depth += depth * share;
      }
    }
    return results_;
  }

 private:
  const LanguageModel& model_;
  const EvalOptions& options_;
  std::vector<Tally> tallies_;
  std::vector<ExitResult> results_;
};

}  // namespace

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
  Comm& comm = *options.comm;
  Totals totals(options.depths);
  ExitTallies exits(model, options);
  for (std::size_t i = comm.rank(); i < batches.size(); i += comm.size()) {
    const std::span<const Window> part = batches[i];
    const Batch batch = evaluation_batch(data, part, model.device());
    const auto add = [&](Tally& tally, const Tensor& rows) {
      const std::vector<double> losses = host_values(rows);
      for_scored_rows(windows, part, [&](std::size_t window, std::size_t row) { tally.add(window, losses[row]); });
    };
    if (options.causal_routing) pass.look = totals.routes.next(batch.tokens.dim(0), batch.tokens.dim(1));
    const auto visit = [&](int depth, const Var& z) {
      add(totals.by_depth[depth], model.losses(z.value(), batch.targets));
    };
    if (options.kv == KvStrategy::full)
      model.exits(batch.tokens, options.depths, pass, visit);
    else
      decode_exits(model, batch.tokens, options.depths, pass, options.kv, visit);
    if (!options.exits.empty()) exits.add(batch, pass, windows, part);
    if (options.further && options.kv == KvStrategy::full)
      for (const auto& [name, losses] : model.further_losses(batch.tokens, batch.targets, pass))
        add(totals.further[name], losses);
    for_scored_rows(windows, part, [&](std::size_t, std::size_t row) { totals.count(row); });
    totals.windows += static_cast<std::int64_t>(part.size());
    if (options.progress && !options.progress(std::min(all, totals.windows * comm.size()), all)) break;
  }
  totals.share(comm, all);
  EvalResult result = totals.result();
  result.exits = exits.results(totals.tokens);
  return result;
}

}  // namespace grt
