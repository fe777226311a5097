#include "tools/analysis/source.h"

#include <algorithm>

#include "tools/analysis/statistics.h"
#include "train/host.h"

namespace grt {

std::vector<Window> Source::windows() const { return evaluation_windows(data.size(), model.config().context_length); }

Pass Source::pass() const {
  Pass pass;
  pass.key.seed = seed;
  return pass;
}

void Source::for_batches(const Shown& shown,
                         const std::function<void(const Batch&, std::span<const Window>)>& visit) const {
  const std::vector<Window> all = windows();
  std::int64_t done = 0;
  for (const std::span<const Window> part : evaluation_batches(all, batch_size)) {
    visit(evaluation_batch(data, part, model.device()), part);
    done += static_cast<std::int64_t>(part.size());
    shown(done, static_cast<std::int64_t>(all.size()));
  }
}

double Source::mean_loss(int depth, const Pass& pass, const Shown& shown) const {
  Mean mean;
  for_batches(shown, [&](const Batch& batch, std::span<const Window>) {
    const Var z = model.hidden(batch.tokens, depth, pass);
    for (const double loss : host_values(model.losses(z.value(), batch.targets))) mean.add(loss);
  });
  return mean.value();
}

std::vector<Batch> Source::samples(std::int64_t count) const {
  const std::vector<Window> all = windows();
  const auto whole = static_cast<std::int64_t>(all.size()) - (all.back().targets < model.config().context_length);
  const std::int64_t candidates = std::max<std::int64_t>(1, whole), taken = std::min(count, candidates);
  std::vector<Batch> samples;
  for (std::int64_t i = 0; i < taken; ++i)
    samples.push_back(evaluation_batch(data, std::span(&all[i * candidates / taken], 1), model.device()));
  return samples;
}

TokenData first_tokens(const std::string& where, std::int64_t vocab_size, std::int64_t tokens) {
  check(tokens >= 1, "--tokens: must be at least 1, not {}", tokens);
  const TokenData all = TokenData::open(where, vocab_size);
  std::vector<std::int32_t> ids(std::min(tokens, all.size() - 1) + 1);
  all.read(0, ids);
  return TokenData::of({ids.begin(), ids.end()}, where, vocab_size);
}

}  // namespace grt
