// What is measured: a model on the first tokens of a file, in the windows of the deterministic evaluation. Sums go over
// the tokens in their order, and a row's values do not depend on its batch, so neither the batch size nor the number of
// threads changes a result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.h"
#include "train/data.h"

namespace grt {

using Shown = std::function<void(std::int64_t done, std::int64_t all)>;  // shows progress

struct Source {
  const LanguageModel& model;
  const TokenData& data;
  std::int64_t batch_size = 8;
  std::uint64_t seed = 1337;

  std::vector<Window> windows() const;
  Pass pass() const;  // of an evaluation
  void for_batches(const Shown& shown, const std::function<void(const Batch&, std::span<const Window>)>& visit) const;
  double mean_loss(int depth, const Pass& pass, const Shown& shown) const;
  // At most `count` windows of full length, spread evenly, as batches of one; where there is none, the short one.
  std::vector<Batch> samples(std::int64_t count) const;
};

// The first `tokens` predictions that a token file offers; fewer where it is shorter.
TokenData first_tokens(const std::string& where, std::int64_t vocab_size, std::int64_t tokens);

}  // namespace grt
