#include "tools/analysis/heads.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "tools/analysis/statistics.h"
#include "train/distribution.h"

namespace grt {

void HeadMass::add(const HeadMass& other) {
  const double n = static_cast<double>(queries), m = static_cast<double>(other.queries);
  if (other.queries == 0) return;
  previous = (n * previous + m * other.previous) / (n + m);
  self = (n * self + m * other.self) / (n + m);
  first = (n * first + m * other.first) / (n + m);
  queries += other.queries;
}

std::string head_kind(const HeadMass& mass) {
  const double most = std::max({mass.previous, mass.self, mass.first});
  if (most < kHeadMass) return "other";
  return most == mass.previous ? "previous" : most == mass.self ? "self" : "broadcast";
}

HeadMass head_mass(std::span<const double> weights, std::int64_t time) {
  check(static_cast<std::int64_t>(weights.size()) == time * time, "attention: {} weights are not {} x {}",
        weights.size(), time, time);
  HeadMass sum;
  for (std::int64_t t = kFirstQuery; t < time; ++t) {
    const double* row = weights.data() + t * time;
    sum.previous += row[t - 1];
    sum.self += row[t];
    sum.first += row[0];
    ++sum.queries;
  }
  if (sum.queries == 0) return sum;
  const double n = static_cast<double>(sum.queries);
  return {sum.previous / n, sum.self / n, sum.first / n, sum.queries};
}

std::vector<double> attention_weights(std::span<const double> qkv, std::int64_t time, int heads, int head) {
  const std::int64_t row = static_cast<std::int64_t>(qkv.size()) / time, width = row / 3, size = width / heads;
  check(time * 3 * size * heads == static_cast<std::int64_t>(qkv.size()),
        "attention: {} values are not q, k and v of {} heads at {} positions", qkv.size(), heads, time);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const auto part = [&](std::int64_t t, std::int64_t begin) {
    return qkv.subspan(t * row + begin + head * size, size);
  };
  std::vector<double> weights(time * time);
  for (std::int64_t t = 0; t < time; ++t) {
    const std::span<double> scores(weights.data() + t * time, t + 1);
    for (std::int64_t s = 0; s <= t; ++s) scores[s] = scale * dot(part(t, 0), part(s, width));
    log_softmax(scores);
    for (double& x : scores) x = std::exp(x);
  }
  return weights;
}

}  // namespace grt
