#include "tools/analysis/exits.h"

#include "core/threads.h"
#include "train/distribution.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr std::int64_t kRows = 256;  // whose logits exist at a time

// log p of each row's next token, (rows, V).
std::vector<double> log_probabilities(const LanguageModel& model, const Tensor& z) {
  const std::int64_t rows = z.dim(0), V = model.config().vocab_size, padded = model.config().padded_vocab_size;
  const std::vector<double> logits = host_values(model.logits(z));
  std::vector<double> log_p(rows * V);
  parallel_for(rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::copy_n(logits.begin() + r * padded, V, log_p.begin() + r * V);
      log_softmax({log_p.data() + r * V, static_cast<std::size_t>(V)});
    }
  });
  return log_p;
}

std::vector<double> row_divergences(const std::vector<double>& log_p, const std::vector<double>& log_q,
                                    std::int64_t rows) {
  std::vector<double> kl(rows);
  const std::size_t V = log_p.size() / static_cast<std::size_t>(rows);
  parallel_for(rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      kl[r] = kl_divergence(std::span(log_p).subspan(r * V, V), std::span(log_q).subspan(r * V, V));
  });
  return kl;
}

// Does the model's objective contain the loss of this exit?
bool trained(const LanguageModel& model, int depth) {
  const DepthRule rule = model.default_depth_rule();
  if (rule.random()) return rule.smallest() <= depth && depth <= rule.largest();
  return depth == rule.depth || (model.trains_exits() && depth < rule.depth);
}

}  // namespace

double executed_flops(const LanguageModel& model, int depth) {
  const Flops flops = model.flops(model.config().context_length, depth);
  return flops.executed_body + flops.executed_head;
}

void ExitTally::add(const std::map<int, Tensor>& hidden, const Tensor& targets) {
  for (const auto& [depth, z] : hidden) {
    const std::vector<double> losses = host_values(model_.losses(z, targets));
    for (const double loss : losses) losses_[depth].add(loss);
    if (depth == depths_.front()) first_.insert(first_.end(), losses.begin(), losses.end());
    if (depth == model_.depths().full) full_.insert(full_.end(), losses.begin(), losses.end());
  }
  add_divergences(hidden);
}

void ExitTally::add_divergences(const std::map<int, Tensor>& hidden) {
  const Tensor& full = hidden.at(model_.depths().full);
  for (std::int64_t begin = 0; begin < full.shape().rows(); begin += kRows) {
    const std::int64_t rows = std::min(kRows, full.shape().rows() - begin);
    const std::vector<double> log_p = log_probabilities(model_, full.rows(begin, rows));
    for (const auto& [depth, z] : hidden)
      for (const double kl : row_divergences(log_p, log_probabilities(model_, z.rows(begin, rows)), rows))
        divergences_[depth].add(kl);
  }
}

double ExitTally::total_reduction() const { return mean(depths_.front()) - mean(model_.depths().full); }

Json ExitTally::exits() const {
  Json exits = Json::array();
  const double total = total_reduction();
  for (std::size_t i = 0; i < depths_.size(); ++i) {
    const int depth = depths_[i];
    Json exit{{"depth", depth}, {"loss", mean(depth)}, {"kl_to_final", divergences_.at(depth).value()}};
    exit["reduction"] = i == 0 ? Json(nullptr) : Json(mean(depths_[i - 1]) - mean(depth));
    const bool within = i > 0 && depth <= model_.depths().full && total != 0;
    exit["share"] = within ? Json(exit["reduction"].get<double>() / total) : Json(nullptr);
    exit["trained"] = trained(model_, depth);
    exit["flops_per_token"] = executed_flops(model_, depth);
    exits.push_back(exit);
  }
  return exits;
}

Json ExitTally::early_exit_points() const {
  Json points = Json::array();
  for (const int depth : depths_)
    if (depth <= model_.depths().full)
      points.push_back({{"depth", depth}, {"flops_per_token", executed_flops(model_, depth)}, {"loss", mean(depth)}});
  return points;
}

Json ExitTally::difficulty() const {
  Json rows = Json::array();
  std::vector<double> x, y;
  for (const Decile& d : deciles(first_, full_)) {
    rows.push_back({{"decile", rows.size() + 1},
                    {"tokens", d.tokens},
                    {"loss_first_exit", d.loss_first},
                    {"loss_full", d.loss_full},
                    {"improvement", d.improvement()}});
    if (d.tokens == 0) continue;
    x.push_back(d.loss_first);
    y.push_back(d.improvement());
  }
  const Line line = fit_line(x, y);
  return {{"deciles", rows}, {"slope", line.slope}, {"intercept", line.intercept}, {"r2", line.r2}};
}

}  // namespace grt
