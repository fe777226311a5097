#include "train/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/threads.h"

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

// Sums and maxima over a vocabulary are taken in so many strands, in loops that the compiler turns into vectors.
constexpr std::size_t kStrands = 8;

double largest_of(std::span<const double> x) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  double most[kStrands];
  std::fill_n(most, kStrands, kLowest);
  std::size_t i = 0;
  for (; i + kStrands <= x.size(); i += kStrands)
    for (std::size_t k = 0; k < kStrands; ++k) most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
  for (; i < x.size(); ++i) most[0] = std::max(most[0], x[i]);
  return *std::max_element(most, most + kStrands);
}

// e^x of x <= 0, within 4e-16; about 1e-304 below -700. With n = round(x / ln 2) and r = x - n ln 2: 2^n e^r, and e^r
// by its series.
double exp_of(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, whose low bits then end the significand
  const double least = x > -700 ? x : -700;
  const double shifted = least * 1.4426950408889634 + kRound, n = shifted - kRound;
  const double r = (least - n * 0x1.62e42feep-1) - n * 1.9082149292705877e-10;  // ln 2 in two parts
  double p = 1.0 / 6227020800;
  for (const double factorial :
       {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0})
    p = p * r + 1 / factorial;
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) << 52) + std::bit_cast<std::uint64_t>(1.0);
  return p * std::bit_cast<double>(exponent);
}

double sum_exp_of_run(std::span<const double> x, double most) {
  double sum[kStrands] = {};
  std::size_t i = 0;
  for (; i + kStrands <= x.size(); i += kStrands)
    for (std::size_t k = 0; k < kStrands; ++k) sum[k] += exp_of(x[i + k] - most);
  for (; i < x.size(); ++i) sum[0] += exp_of(x[i] - most);
  return std::accumulate(sum, sum + kStrands, 0.0);
}

// sum of e^(x - most), run by run.
double sum_exp(std::span<const double> x, double most) {
  constexpr std::int64_t kRun = 4096;
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<double> sums(static_cast<std::size_t>((n + kRun - 1) / kRun));
  parallel_for(n, kRun, [&](std::int64_t begin, std::int64_t end) {
    sums[begin / kRun] = sum_exp_of_run(x.subspan(begin, end - begin), most);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

int likeliest(std::span<const double> logits) {  // the first of equals
  return static_cast<int>(std::find(logits.begin(), logits.end(), largest_of(logits)) - logits.begin());
}

}  // namespace

void check_sampling(const Sampling& s) {
  check(std::isfinite(s.temperature) && s.temperature >= 0,
        "--temperature: must be a finite number from 0 on (0 is greedy), not {}", s.temperature);
  check(s.top_k >= 0, "--top-k: must be 0 (all tokens) or more, not {}", s.top_k);
  check(s.top_p > 0 && s.top_p <= 1, "--top-p: must be above 0 and at most 1, not {}", s.top_p);
}

double logprob(std::span<const double> logits, int id) {
  const double largest = largest_of(logits);
  return logits[id] - (largest + std::log(sum_exp(logits, largest)));
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
