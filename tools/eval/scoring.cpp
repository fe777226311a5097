// How a request is computed - the length it is padded to, whether what it shares with others has a pass of its own -
// depends on its document alone. Since a kernel gives a row the same bits whatever else is in the batch, results are
// bit-equal for any batch size, order and limit.
#include "tools/eval/scoring.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "ops/kernels.h"
#include "train/optimizer.h"

namespace grt {
namespace {

constexpr std::int64_t kLengthStep = 8;   // lengths are padded to a multiple of it
constexpr std::int64_t kLogitRows = 256;  // at a time
constexpr double kWorthSharing = 0.8;     // of the tokens, at most, where two short passes are to beat one

// One input and the requests it answers: those of a document that differ in their last id alone.
struct Sequence {
  std::vector<int> ids;
  std::vector<std::size_t> requests;
};

// Sequences that begin with the same `shared` ids, which have a pass of their own unless there are none.
struct Group {
  std::int64_t shared = 0, padded = 0;  // padded: the length of a sequence's pass
  std::vector<Sequence> sequences;
};

std::int64_t length(const std::vector<int>& ids) { return static_cast<std::int64_t>(ids.size()); }

// `count` rounded up; positions end at the model's context length.
std::int64_t padded_length(std::int64_t count, std::int64_t most) {
  return std::min((count + kLengthStep - 1) / kLengthStep * kLengthStep, most);
}

std::vector<Sequence> different_inputs(std::span<const Request> requests, std::size_t first, std::size_t count,
                                       std::int64_t context_length) {
  std::vector<Sequence> sequences;
  for (std::size_t i = first; i < first + count; ++i) {
    std::vector<int> ids = model_input(requests[i], context_length);
    const auto same = std::find_if(sequences.begin(), sequences.end(), [&](const Sequence& s) { return s.ids == ids; });
    if (same != sequences.end()) {
      same->requests.push_back(i);
    } else {
      sequences.push_back({std::move(ids), {i}});
    }
  }
  return sequences;
}

// How many ids all sequences begin with, up to the first whose logits are wanted.
std::int64_t shared_ids(const std::vector<Sequence>& sequences, std::span<const Request> requests) {
  std::int64_t shared = std::numeric_limits<std::int64_t>::max();
  for (const Sequence& s : sequences) {
    for (const std::size_t i : s.requests) shared = std::min(shared, length(s.ids) - length(requests[i].continuation));
    const auto [here, there] =
        std::mismatch(s.ids.begin(), s.ids.end(), sequences[0].ids.begin(), sequences[0].ids.end());
    shared = std::min<std::int64_t>(shared, here - s.ids.begin());
  }
  return shared;
}

// One group of a document's sequences if it pays that they share, else each for itself.
void add_groups(std::vector<Sequence> sequences, std::span<const Request> requests, bool may_share,
                std::int64_t context_length, std::vector<Group>& groups) {
  const std::int64_t shared = may_share ? shared_ids(sequences, requests) : 0;
  std::int64_t longest = 0, apart = 0;
  for (const Sequence& s : sequences) {
    longest = std::max(longest, length(s.ids));
    apart += padded_length(length(s.ids), context_length);
  }
  const std::int64_t padded = padded_length(longest - shared, context_length - shared);
  const auto together = static_cast<double>(shared + padded * static_cast<std::int64_t>(sequences.size()));
  if (shared > 0 && together <= kWorthSharing * static_cast<double>(apart)) {
    groups.push_back({shared, padded, std::move(sequences)});
    return;
  }
  for (Sequence& s : sequences) {
    const std::int64_t alone = padded_length(length(s.ids), context_length);
    groups.push_back({0, alone, {std::move(s)}});
  }
}

// Longest first, so that memory and the time left are known early.
std::vector<Group> grouped(std::span<const Request> requests, bool may_share, std::int64_t context_length) {
  std::vector<Group> groups;
  for (std::size_t begin = 0, end; begin < requests.size(); begin = end) {
    for (end = begin; end < requests.size() && requests[end].document == requests[begin].document;) ++end;
    add_groups(different_inputs(requests, begin, end - begin, context_length), requests, may_share, context_length,
               groups);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    const std::int64_t of_a = a.shared + a.padded, of_b = b.shared + b.padded;
    return of_a != of_b ? of_a > of_b : a.shared > b.shared;
  });
  return groups;
}

// The next groups of one shape, of as many sequences as a batch may have, but at least one group.
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

class Scorer {
 public:
  Scorer(const LanguageModel& model, std::span<const Request> requests, const ScoreOptions& options)
      : model_(model), requests_(requests), options_(options) {
    scores_.assign(requests.size(), std::vector<Score>(options.depths.size()));
    pass_.causal_routing = true;
    pass_.forced_gate = options.forced_gate;
    pass_.key.seed = options.seed;
  }

  void run(std::span<const Group> batch) {
    std::optional<KvCache> cache;
    if (batch[0].shared > 0) cache.emplace(shared_cache(batch));
    Pass pass = pass_;
    pass.cache = cache ? &*cache : nullptr;
    const std::int64_t shared = batch[0].shared, padded = batch[0].padded;
    std::vector<const Sequence*> sequences;
    std::vector<std::int32_t> ids;
    for (const Group& group : batch) {
      for (const Sequence& s : group.sequences) {
        sequences.push_back(&s);
        ids.insert(ids.end(), s.ids.begin() + shared, s.ids.end());
        ids.resize(sequences.size() * static_cast<std::size_t>(padded));  // what follows changes nothing before it
      }
    }
    std::size_t depth = 0;
    model_.exits(tokens(ids, padded), options_.depths, pass,
                 [&](int, const Var& z) { score_exit(z.value(), sequences, shared, depth++); });
  }

  const std::vector<std::vector<Score>>& scores() const { return scores_; }

 private:
  Tensor tokens(const std::vector<std::int32_t>& ids, std::int64_t time) const {
    const std::int64_t sequences = static_cast<std::int64_t>(ids.size()) / time;
    return Tensor::from<std::int32_t>({sequences, time}, ids, model_.device());
  }

  // The keys and values of what each group shares, once for each of its sequences.
  KvCache shared_cache(std::span<const Group> batch) const {
    const std::int64_t shared = batch[0].shared, capacity = shared + batch[0].padded;
    const int depth = options_.depths.at(0), slots = static_cast<int>(model_.applications(depth).size());
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> group_of;  // by sequence
    for (const Group& group : batch) {
      group_of.resize(group_of.size() + group.sequences.size(), &group - batch.data());
      ids.insert(ids.end(), group.sequences[0].ids.begin(), group.sequences[0].ids.begin() + shared);
    }
    KvCache once = model_.make_cache(static_cast<std::int64_t>(batch.size()), capacity, depth);
    Pass pass = pass_;
    pass.cache = &once;
    model_.hidden(tokens(ids, shared), depth, pass);
    model_.device().sync();  // before `ids` dies

    KvCache all = model_.make_cache(static_cast<std::int64_t>(group_of.size()), capacity, depth);
    all.past = shared;
    for (int slot = 0; slot < slots; ++slot) {
      for (std::size_t s = 0; s < group_of.size(); ++s) {
        copy_sequence(once.slot(slot).keys, group_of[s], all.slot(slot).keys, static_cast<std::int64_t>(s));
        copy_sequence(once.slot(slot).values, group_of[s], all.slot(slot).values, static_cast<std::int64_t>(s));
        all.taken(slot, static_cast<std::int64_t>(s)) = once.taken(slot, group_of[s]);
      }
    }
    return all;
  }

  static void copy_sequence(const Tensor& from, std::int64_t i, const Tensor& to, std::int64_t j) {
    const Shape& all = from.shape();
    const Shape one{all[1], all[2], all[3]};
    from.device().copy(to.range(j * one.numel(), one).raw(), from.range(i * one.numel(), one).raw(),
                       from.bytes() / static_cast<std::size_t>(all[0]));
  }

  // z (sequences, padded, d), whose first row is that of the id after the shared ones.
  void score_exit(const Tensor& z, const std::vector<const Sequence*>& sequences, std::int64_t shared,
                  std::size_t depth) {
    std::vector<std::int32_t> targets;
    std::vector<std::size_t> owner;  // the request of each row
    for (const Sequence* s : sequences) {
      for (const std::size_t i : s->requests) {
        const std::vector<int>& continuation = requests_[i].continuation;
        targets.insert(targets.end(), continuation.begin(), continuation.end());
        owner.resize(targets.size(), i);
      }
    }
    const Tensor rows = Tensor::empty({static_cast<std::int64_t>(owner.size()), z.dim(2)}, z.dtype(), z.device());
    std::int64_t filled = 0;
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      for (const std::size_t i : sequences[b]->requests) {
        const std::int64_t n = length(requests_[i].continuation);
        const std::int64_t first = static_cast<std::int64_t>(b) * z.dim(1) + length(sequences[b]->ids) - shared - n;
        const Tensor from = z.rows(first, n);
        z.device().copy(rows.rows(filled, n).raw(), from.raw(), from.bytes());
        filled += n;
      }
    }
    for (std::int64_t begin = 0; begin < filled; begin += kLogitRows) {
      const std::int64_t n = std::min(kLogitRows, filled - begin);
      add_rows(model_.logits(rows.rows(begin, n)), std::span(targets).subspan(begin, n),
               std::span(owner).subspan(begin, n), depth);
    }
  }

  void add_rows(const Tensor& logits, std::span<const std::int32_t> targets, std::span<const std::size_t> owner,
                std::size_t depth) {
    Device& device = model_.device();
    const auto n = static_cast<std::int64_t>(targets.size());
    const Tensor losses = Tensor::empty({n}, logits.dtype(), device);
    device.kernels().cross_entropy(losses, {}, logits, Tensor::from<std::int32_t>({n}, targets, device),
                                   model_.config().vocab_size, 1);
    visit_real(logits.dtype(), [&]<class T>() {
      std::vector<T> loss(targets.size()), logit(static_cast<std::size_t>(logits.numel()));
      device.copy(loss.data(), losses.raw(), losses.bytes());
      device.copy(logit.data(), logits.raw(), logits.bytes());
      device.sync();
      for (std::size_t r = 0; r < targets.size(); ++r) {
        Score& score = scores_[owner[r]][depth];
        score.log_likelihood -= loss[r];
        const auto row = logit.begin() + static_cast<std::ptrdiff_t>(r) * logits.dim(1);
        const auto best = std::max_element(row, row + model_.config().vocab_size);  // the first of equals
        score.greedy = score.greedy && best - row == targets[r];
      }
    });
  }

  const LanguageModel& model_;
  std::span<const Request> requests_;
  const ScoreOptions& options_;
  Pass pass_;
  std::vector<std::vector<Score>> scores_;
};

void check_ids(std::span<const Request> requests, int vocab) {
  for (const Request& request : requests)
    for (const std::vector<int>* ids : {&request.context, &request.continuation})
      for (const int id : *ids)
        check(id >= 0 && id < vocab, "document {}: id {} is outside [0, {}), the model's vocabulary", request.document,
              id, vocab);
}

}  // namespace

std::vector<std::vector<Score>> score_requests(const LanguageModel& model, std::span<const Request> requests,
                                               const ScoreOptions& options) {
  check_ids(requests, model.config().vocab_size);
  // A cache serves one exit; several exits share more by coming from one pass.
  const std::vector<Group> groups = grouped(requests, options.depths.size() == 1, model.config().context_length);
  Scorer scorer(model, requests, options);
  std::int64_t done = 0, tokens = 0;
  for (std::span<const Group> left = groups; !left.empty();) {
    const std::span<const Group> batch = next_batch(left, options.batch_size);
    scorer.run(batch);
    left = left.subspan(batch.size());
    for (const Group& group : batch) {
      for (const Sequence& s : group.sequences) {
        done += static_cast<std::int64_t>(s.requests.size());
        for (const std::size_t i : s.requests) tokens += length(requests[i].context) + length(requests[i].continuation);
      }
    }
    if (options.progress) options.progress(done, tokens);
  }
  for (const std::vector<Score>& scores : scorer.scores())
    for (const Score& score : scores)
      check(std::isfinite(score.log_likelihood), "a log-likelihood is {}; {}", score.log_likelihood,
            first_bad_weight(model.params()).empty() ? "all weights are finite"
                                                     : "the first bad weight: " + first_bad_weight(model.params()));
  return scorer.scores();
}

}  // namespace grt
