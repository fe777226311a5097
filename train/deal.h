// Which micro-batches of a step each rank computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace grt {

// The indices, ascending, of the micro-batches that fall to `rank` of `ranks`. depths[i] is that of micro-batch i: they
// are sorted by it, the deepest first, and dealt back and forth, 0 1 2 2 1 0 0 1 ..., so that the sums of depths are
// close to each other.
std::vector<std::int64_t> deal(std::span<const int> depths, int rank, int ranks);

}  // namespace grt
