// Distributions over a model's ids, as rows of logits or log-probabilities (nats).
#pragma once

#include <span>

namespace grt {

// log softmax of a row of logits, in place.
void log_softmax(std::span<double> logits);

// KL(p || q) = sum p (log p - log q), of two rows of log-probabilities.
double kl_divergence(std::span<const double> log_p, std::span<const double> log_q);

}  // namespace grt
