#include "tools/eval/batches.h"

#include <algorithm>
#include <limits>

namespace grt {
namespace {

constexpr std::int64_t kLengthStep = 8;  // lengths are padded to a multiple of it
constexpr double kWorthSharing = 0.8;    // of the tokens, at most, where two short passes are to beat one

std::int64_t length(const std::vector<int>& ids) { return static_cast<std::int64_t>(ids.size()); }

// `count` rounded up; positions end at the model's context length.
std::int64_t padded_length(std::int64_t count, std::int64_t most) {
  return std::min((count + kLengthStep - 1) / kLengthStep * kLengthStep, most);
}

std::vector<Sequence> different_inputs(std::span<const Request> requests, std::size_t begin, std::size_t end,
                                       std::int64_t context_length) {
  std::vector<Sequence> sequences;
  for (std::size_t i = begin; i < end; ++i) {
    std::vector<int> ids = model_input(requests[i], context_length);
    const std::int64_t scored = length(requests[i].continuation);
    const auto same = std::find_if(sequences.begin(), sequences.end(),
                                   [&](const Sequence& s) { return s.scored == scored && s.ids == ids; });
    if (same != sequences.end()) {
      same->requests.push_back(i);
    } else {
      sequences.push_back({std::move(ids), scored, {i}});
    }
  }
  return sequences;
}

std::int64_t common_ids(const Sequence& a, const Sequence& b) {
  return std::mismatch(a.ids.begin(), a.ids.end(), b.ids.begin(), b.ids.end()).first - a.ids.begin();
}

// One group where sharing all that they begin with, up to the first id whose logits are wanted, pays.
bool add_if_worth(std::vector<Sequence>& sequences, std::int64_t context_length, std::vector<Group>& groups) {
  std::int64_t shared = std::numeric_limits<std::int64_t>::max(), longest = 0, apart = 0;
  for (const Sequence& s : sequences) {
    shared = std::min({shared, length(s.ids) - s.scored, common_ids(s, sequences[0])});
    longest = std::max(longest, length(s.ids));
    apart += padded_length(length(s.ids), context_length);
  }
  const std::int64_t padded = padded_length(longest - shared, context_length - shared);
  const auto together = static_cast<double>(shared + padded * static_cast<std::int64_t>(sequences.size()));
  if (shared == 0 || together > kWorthSharing * static_cast<double>(apart)) return false;
  groups.push_back({shared, padded, std::move(sequences)});
  return true;
}

// A group for each context.
void add_by_context(std::vector<Sequence>& sequences, std::vector<Group>& groups) {
  const auto first = static_cast<std::ptrdiff_t>(groups.size());
  for (Sequence& s : sequences) {
    const std::int64_t shared = length(s.ids) - s.scored;
    auto group = std::find_if(groups.begin() + first, groups.end(), [&](const Group& g) {
      return g.shared == shared && common_ids(s, g.sequences[0]) > shared;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {.shared = shared});
    group->padded = std::max(group->padded, s.scored);
    group->sequences.push_back(std::move(s));
  }
}

}  // namespace

std::vector<Group> grouped(std::span<const Request> requests, Sharing sharing, std::int64_t context_length) {
  std::vector<Group> groups;
  for (std::size_t begin = 0, end; begin < requests.size(); begin = end) {
    for (end = begin; end < requests.size() && requests[end].document == requests[begin].document;) ++end;
    std::vector<Sequence> sequences = different_inputs(requests, begin, end, context_length);
    if (sharing == Sharing::context) {
      add_by_context(sequences, groups);
    } else if (sharing == Sharing::none || !add_if_worth(sequences, context_length, groups)) {
      for (Sequence& s : sequences) {
        const std::int64_t padded = padded_length(length(s.ids), context_length);
        groups.push_back({.padded = padded});
        groups.back().sequences.push_back(std::move(s));
      }
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    const std::int64_t of_a = a.shared + a.padded, of_b = b.shared + b.padded;
    return of_a != of_b ? of_a > of_b : a.shared > b.shared;
  });
  return groups;
}

std::span<const Group> next_batch(std::span<const Group> groups, std::int64_t batch_size) {
  std::size_t count = 0;
  std::int64_t sequences = 0;
  for (; count < groups.size(); ++count) {
    const Group& group = groups[count];
    sequences += static_cast<std::int64_t>(group.sequences.size());
    if (count == 0) continue;
    if (sequences > batch_size || group.shared != groups[0].shared || group.padded != groups[0].padded) break;
  }
  return groups.first(count);
}

}  // namespace grt
