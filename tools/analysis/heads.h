// What an attention head looks at, told from where its attention lies on average.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace grt {

// A head is of the kind whose share of the attention is at least kHeadMass, the largest if several are. Queries from
// position kFirstQuery on count: before it the token itself, the one before and the first are not three.
inline constexpr double kHeadMass = 0.4;
inline constexpr std::int64_t kFirstQuery = 2;

// Attention on the previous position, on the query's own, and on the first one ("broadcast": one position is read by
// all), a mean over queries.
struct HeadMass {
  double previous = 0, self = 0, first = 0;
  std::int64_t queries = 0;

  void add(const HeadMass& other);  // the mean over the queries of both
};
std::string head_kind(const HeadMass& mass);  // previous, self, broadcast or other

// Of causal attention weights (T, T), row-major, whose rows are queries.
HeadMass head_mass(std::span<const double> weights, std::int64_t time);

// The weights softmax(q k^T / sqrt(D)) of one head, from qkv (T, 3C): q, k, v of all heads, heads contiguous.
std::vector<double> attention_weights(std::span<const double> qkv, std::int64_t time, int heads, int head);

}  // namespace grt
