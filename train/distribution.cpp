#include "train/distribution.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace grt {

void log_softmax(std::span<double> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - most);
  const double normalizer = most + std::log(sum);
  for (double& x : logits) x -= normalizer;
}

double kl_divergence(std::span<const double> log_p, std::span<const double> log_q) {
  check(log_p.size() == log_q.size(), "distributions of {} and {} ids", log_p.size(), log_q.size());
  double sum = 0;
  for (std::size_t i = 0; i < log_p.size(); ++i) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  return std::max(sum, 0.0);  // of nearly equal ones, rounding may leave less
}

}  // namespace grt
