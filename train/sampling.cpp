#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace grt {
namespace {

// Sites: "samp", "acce", "inst", none of a model's noise or of the data.
constexpr std::uint32_t kSampleSite = 0x73616d70, kAcceptSite = 0x61636365, kInsteadSite = 0x696e7374;

// Zeroes the weights of all ids but the top_k likeliest, and of these all but the likeliest that make up top_p.
void narrow(std::vector<double>& weights, std::span<const double> logits, const Sampling& sampling) {
  const auto V = static_cast<std::int64_t>(logits.size());
  const std::int64_t k = sampling.top_k > 0 ? std::min(sampling.top_k, V) : V;
  if (k == V && sampling.top_p >= 1) return;
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  double wanted = 0, sum = 0;
  for (std::int64_t i = 0; i < k; ++i) wanted += sampling.top_p * weights[order[i]];
  std::int64_t kept = 0;
  while (kept < k && (kept == 0 || sum < wanted)) sum += weights[order[kept++]];
  for (std::int64_t i = kept; i < V; ++i) weights[order[i]] = 0;
}

// Of each id, relative to that of the likeliest; none where the likeliest is always chosen.
std::vector<double> weights(std::span<const double> logits, const Sampling& sampling) {
  const double best = *std::max_element(logits.begin(), logits.end());
  std::vector<double> list(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) list[i] = std::exp((logits[i] - best) / sampling.temperature);
  narrow(list, logits, sampling);
  return list;
}

int likeliest(std::span<const double> logits) {  // the first of equals
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

void check_sampling(const Sampling& s) {
  check(std::isfinite(s.temperature) && s.temperature >= 0,
        "--temperature: must be a finite number from 0 on (0 is greedy), not {}", s.temperature);
  check(s.top_k >= 0, "--top-k: must be 0 (all tokens) or more, not {}", s.top_k);
  check(s.top_p > 0 && s.top_p <= 1, "--top-p: must be above 0 and at most 1, not {}", s.top_p);
}

double logprob(std::span<const double> logits, int id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - largest);
  return logits[id] - (largest + std::log(sum));
}

int id_at(double u, std::span<const double> weights) {
  const double target = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    last = static_cast<int>(id);
    sum += weights[id];
    if (sum > target) break;
  }
  return last;
}

NewToken choose(std::span<const double> logits, const Sampling& sampling, int sample, std::int64_t position) {
  int id = likeliest(logits);
  if (sampling.temperature > 0) {
    const NoiseKey key{sampling.seed, static_cast<std::uint32_t>(sample), kSampleSite};
    id = id_at(random_unit(key, static_cast<std::uint64_t>(position)), weights(logits, sampling));
  }
  return {id, logprob(logits, id)};
}

std::vector<double> distribution(std::span<const double> logits, const Sampling& sampling) {
  std::vector<double> p(logits.size());
  if (sampling.temperature == 0) {
    p[likeliest(logits)] = 1;
    return p;
  }
  p = weights(logits, sampling);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

double random_number(const Sampling& sampling, Draw draw, int sample, std::int64_t position) {
  const std::uint32_t site = draw == Draw::accept ? kAcceptSite : kInsteadSite;
  return random_unit({sampling.seed, static_cast<std::uint32_t>(sample), site}, static_cast<std::uint64_t>(position));
}

}  // namespace grt
