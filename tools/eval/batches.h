// Requests put together for the passes of a model: equal inputs once, what the choices of a document share once, and
// batches of like length.
#pragma once

#include <span>
#include <vector>

#include "tools/eval/requests.h"

namespace grt {

// One input and the requests it answers: those of a document that differ in their last id alone.
struct Sequence {
  std::vector<int> ids;
  std::int64_t scored;  // the last so many predict the continuations
  std::vector<std::size_t> requests;
};

// Sequences that begin with the same `shared` ids, which have a pass of their own unless there are none.
struct Group {
  std::int64_t shared = 0;
  std::int64_t padded = 0;  // the length of a sequence's pass over the rest, filled up
  std::vector<Sequence> sequences = {};
};

enum class Sharing {
  none,     // every sequence by itself
  worth,    // what is shared, where that takes clearly fewer tokens
  context,  // all of the context but its last id, always
};

// Longest first, so that the memory needed is known early and the time left is not underestimated. What becomes of a
// request depends on the other requests of its document alone.
std::vector<Group> grouped(std::span<const Request> requests, Sharing sharing, std::int64_t context_length);

// The first groups, of one shape and as many sequences as a batch may have, but at least one group.
std::span<const Group> next_batch(std::span<const Group> groups, std::int64_t batch_size);

}  // namespace grt
