#include "train/deal.h"

#include <algorithm>
#include <numeric>

namespace grt {

std::vector<std::int64_t> deal(std::span<const int> depths, int rank, int ranks) {
  std::vector<std::int64_t> order(depths.size()), mine;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return depths[a] > depths[b]; });
  for (std::int64_t i = 0; i < std::ssize(order); ++i) {
    const std::int64_t round = i / ranks, place = i % ranks;
    if ((round % 2 == 0 ? place : ranks - 1 - place) == rank) mine.push_back(order[i]);
  }
  std::sort(mine.begin(), mine.end());
  return mine;
}

}  // namespace grt
