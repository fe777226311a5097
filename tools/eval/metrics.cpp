#include "tools/eval/metrics.h"

#include <cmath>

#include "core/error.h"

namespace grt {
namespace {

Measure share(std::int64_t correct, std::int64_t n) {
  const double p = static_cast<double>(correct) / static_cast<double>(n);
  return {p, n > 1 ? std::sqrt(p * (1 - p) / static_cast<double>(n - 1)) : 0, correct};
}

Measure perplexity_of(std::span<const Score> targets) {
  const auto n = static_cast<double>(targets.size());
  double sum = 0, squares = 0;
  for (const Score& s : targets) sum += s.log_likelihood;
  const double mean = sum / n;
  for (const Score& s : targets) squares += (s.log_likelihood - mean) * (s.log_likelihood - mean);
  const double value = std::exp(-mean);
  return {value, n > 1 ? value * std::sqrt(squares / (n - 1) / n) : 0, 0};
}

// The first choice of largest log-likelihood, or of largest log-likelihood by character.
int likeliest(const Document& document, std::span<const Score> scores, bool by_length) {
  int best = 0;
  double most = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double chars = static_cast<double>(document.choices[i].norm_chars);
    const double value = by_length ? scores[i].log_likelihood / chars : scores[i].log_likelihood;
    if (i > 0 && !(value > most)) continue;
    best = static_cast<int>(i);
    most = value;
  }
  return best;
}

}  // namespace

Metrics metrics_of(const TaskDocuments& task, std::span<const Score> scores) {
  const auto n = static_cast<std::int64_t>(task.documents.size());
  std::int64_t acc = 0, acc_norm = 0;
  std::size_t next = 0;
  for (const Document& document : task.documents) {
    check(next + document.choices.size() <= scores.size(), "{}: {} scores are too few", task.task->name, scores.size());
    const std::span<const Score> own = scores.subspan(next, document.choices.size());
    next += own.size();
    if (task.task->chooses()) {
      acc += likeliest(document, own, false) == document.gold;
      acc_norm += likeliest(document, own, true) == document.gold;
    } else {
      acc += own[0].greedy;
    }
  }
  Metrics metrics{n, share(acc, n), {}, {}};
  if (task.task->metric == Metric::acc_norm) metrics.acc_norm = share(acc_norm, n);
  if (task.task->metric == Metric::target) metrics.perplexity = perplexity_of(scores);
  return metrics;
}

}  // namespace grt
