#include "tools/analysis/motion.h"

#include <algorithm>
#include <map>

#include "core/threads.h"
#include "models/recurrent.h"
#include "tools/analysis/gain.h"
#include "tools/analysis/statistics.h"
#include "tools/analysis/trajectory.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr std::int64_t kGainWindows = 4, kFateWindows = 4;
constexpr int kLeastSteps = 32;

// The states h_0 .. h_N of one window, token by token.
std::vector<States> token_states(const RecurrentModel::Unrolled& unrolled, int steps) {
  const auto tokens = static_cast<std::size_t>(unrolled.h.shape().rows());
  const auto width = static_cast<std::size_t>(unrolled.h.shape().last());
  std::vector<States> states(tokens);
  Var h = unrolled.h;
  for (int r = 0;; ++r) {
    const std::vector<double> all = host_values(h.value());
    for (std::size_t i = 0; i < tokens; ++i)
      states[i].emplace_back(all.begin() + static_cast<std::ptrdiff_t>(i * width),
                             all.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
    if (r == steps) return states;
    h = unrolled.step(h, r);
  }
}

}  // namespace

std::vector<double> step_gains(const Source& source, const Shown& shown) {
  const auto* model = dynamic_cast<const RecurrentModel*>(&source.model);
  if (!model) return {};
  const int full = model->depths().full;
  const std::vector<Batch> windows = source.samples(kGainWindows);
  std::vector<Mean> gains(full);
  GainOptions options;
  options.start.seed = source.seed;
  std::int64_t done = 0;
  for (const Batch& window : windows) {
    const RecurrentModel::Unrolled unrolled = model->unroll(window.tokens, source.pass());
    if (!unrolled.repeatable) return {};
    Var h = unrolled.h;
    for (int r = 0; r < full; ++r) {
      gains[r].add(largest_gain([&](const Var& x) { return unrolled.step(x, r); }, h.value(), options).value);
      h = unrolled.step(h, r);
      shown(++done, static_cast<std::int64_t>(windows.size()) * full);
    }
  }
  std::vector<double> values;
  for (const Mean& gain : gains) values.push_back(gain.value());
  return values;
}

Fates classify_tokens(const Source& source, const Shown& shown) {
  const auto* model = dynamic_cast<const RecurrentModel*>(&source.model);
  if (!model || model->depths().highest != kAnyDepth) return {nullptr, 0};
  const int steps = std::max(kLeastSteps, 4 * model->depths().full);
  std::map<Fate, std::int64_t> counts;
  std::int64_t tokens = 0, done = 0;
  const std::vector<Batch> windows = source.samples(kFateWindows);
  for (const Batch& window : windows) {
    const std::vector<States> states = token_states(model->unroll(window.tokens, source.pass()), steps);
    std::vector<Fate> fates(states.size());
    parallel_for(static_cast<std::int64_t>(fates.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) fates[i] = classify(states[i]);
    });
    for (const Fate fate : fates) ++counts[fate];
    tokens += static_cast<std::int64_t>(fates.size());
    shown(++done, static_cast<std::int64_t>(windows.size()));
  }
  Json shares = Json::array();
  for (const Fate fate : {Fate::fixed_point, Fate::orbit, Fate::slider, Fate::other})
    shares.push_back(
        {{"kind", name_of(fate)}, {"share", static_cast<double>(counts[fate]) / static_cast<double>(tokens)}});
  return {shares, steps};
}

}  // namespace grt
