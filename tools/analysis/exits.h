// The exits of a model on a text: the loss of each, and how far its distributions are from those at full depth.
#pragma once

#include <map>
#include <vector>

#include "core/json.h"
#include "models/model.h"
#include "tools/analysis/statistics.h"
#include "train/data.h"

namespace grt {

class ExitTally {
 public:
  // `depths` ascending, with the model's lowest and its full one among them.
  ExitTally(const LanguageModel& model, std::vector<int> depths) : model_(model), depths_(std::move(depths)) {}

  const std::vector<int>& depths() const { return depths_; }
  // The hidden states of a batch at each of the depths, and what follows its tokens.
  void add(const std::map<int, Tensor>& hidden, const Tensor& targets);

  double mean(int depth) const { return losses_.at(depth).value(); }
  double total_reduction() const;
  const std::vector<double>& first_losses() const { return first_; }  // of each token, at the lowest exit
  const std::vector<double>& full_losses() const { return full_; }
  Json exits() const;              // "exits" of analysis.json
  Json early_exit_points() const;  // loss and FLOPs up to full depth
  Json difficulty() const;         // deciles and the line through them

 private:
  void add_divergences(const std::map<int, Tensor>& hidden);

  const LanguageModel& model_;
  std::vector<int> depths_;
  std::map<int, Mean> losses_, divergences_;
  std::vector<double> first_, full_;
};

// Per token, executed, body and head, with a whole window as context.
double executed_flops(const LanguageModel& model, int depth);

}  // namespace grt
