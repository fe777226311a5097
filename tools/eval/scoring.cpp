// How a request is computed - the length it is padded to, whether what it shares with others has a pass of its own -
// depends on its document alone. Since a kernel gives a row the same bits whatever else is in the batch, results are
// bit-equal for any batch size, order and limit.
#include "tools/eval/scoring.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/kernels.h"
#include "tools/eval/batches.h"
#include "train/optimizer.h"

namespace grt {
namespace {

constexpr std::int64_t kLogitRows = 256;  // at a time

std::int64_t length(const std::vector<int>& ids) { return static_cast<std::int64_t>(ids.size()); }

// A batch as a list of its sequences, each with the place of its group.
struct SequenceBatch {
  explicit SequenceBatch(std::span<const Group> of) : groups(of), shared(of[0].shared), padded(of[0].padded) {
    for (std::size_t g = 0; g < of.size(); ++g) {
      for (const Sequence& s : of[g].sequences) {
        sequences.push_back(&s);
        group_of.push_back(static_cast<std::int64_t>(g));
      }
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(sequences.size()); }

  std::span<const Group> groups;
  std::int64_t shared, padded;
  std::vector<const Sequence*> sequences;
  std::vector<std::int64_t> group_of;
};

void copy_rows(const Tensor& to, std::int64_t first_to, const Tensor& from, std::int64_t first_from, std::int64_t n) {
  const Tensor source = from.rows(first_from, n);
  from.device().copy(to.rows(first_to, n).raw(), source.raw(), source.bytes());
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

  void run(const SequenceBatch& batch) {
    if (options_.kv != KvStrategy::full || options_.exit) {
      for (std::size_t i = 0; i < options_.depths.size(); ++i) {
        std::vector<int> steps;
        const Tensor z = step_by_step(batch, options_.depths[i], steps);
        score_exit(z, batch, i, steps);
      }
      return;
    }
    Context context;
    Pass pass = pass_;
    if (batch.shared > 0) {
      context = read_shared(batch, batch.shared, options_.depths.at(0));
      pass.cache = &*context.cache;
    }
    std::size_t i = 0;
    model_.exits(rest(batch, batch.shared, batch.padded), options_.depths, pass,
                 [&](int, const Var& z) { score_exit(z.value(), batch, i++); });
  }

  const std::vector<std::vector<Score>>& scores() const { return scores_; }

 private:
  struct Context {
    std::optional<KvCache> cache;  // of each sequence
    Tensor z;                      // of each group
    std::vector<int> steps;        // of each of its rows
  };

  Tensor tokens(const std::vector<std::int32_t>& ids, std::int64_t sequences) const {
    const Tensor t = Tensor::from<std::int32_t>({sequences, static_cast<std::int64_t>(ids.size()) / sequences}, ids,
                                                model_.device());
    model_.device().sync();  // before `ids` dies
    return t;
  }

  // `count` ids of each sequence from `first` on. It is filled up with 0: what follows changes nothing before it.
  Tensor rest(const SequenceBatch& batch, std::int64_t first, std::int64_t count) const {
    std::vector<std::int32_t> ids;
    for (const Sequence* s : batch.sequences)
      for (std::int64_t t = first; t < first + count; ++t)
        ids.push_back(t < length(s->ids) ? s->ids[static_cast<std::size_t>(t)] : 0);
    return tokens(ids, batch.size());
  }

  // (B, T, d) of tokens (B, T), and the steps of each.
  Tensor hidden(const Tensor& tokens, int depth, KvCache& cache, std::vector<int>& steps) const {
    Pass pass = pass_;
    pass.cache = &cache;
    steps.assign(static_cast<std::size_t>(tokens.numel()), depth);
    if (!options_.exit) return model_.hidden(tokens, depth, pass).value();
    for (std::int64_t b = 0; b < tokens.dim(0); ++b) cache.expect(b, tokens.dim(1));
    Halt halt(model_, *options_.exit);
    halt.enter(pass);
    const Tensor z = model_.hidden(tokens.view({1, tokens.numel()}), depth, pass).value();
    steps = halt.depths();
    return z.view({tokens.dim(0), tokens.dim(1), z.shape().last()});
  }

  // The first `count` ids of each group, computed once and made the past of each of its sequences.
  Context read_shared(const SequenceBatch& batch, std::int64_t count, int depth) const {
    std::vector<std::int32_t> ids;
    for (const Group& group : batch.groups)
      ids.insert(ids.end(), group.sequences[0].ids.begin(), group.sequences[0].ids.begin() + count);
    const auto groups = static_cast<std::int64_t>(batch.groups.size());
    const std::int64_t capacity = batch.shared + batch.padded;
    KvCache once = model_.make_cache(groups, capacity, depth, options_.kv);
    Context context{model_.make_cache(batch.size(), capacity, depth, options_.kv), {}, {}};
    context.z = hidden(tokens(ids, groups), depth, once, context.steps);
    for (std::int64_t s = 0; s < batch.size(); ++s)
      context.cache->copy_sequence(s, once, batch.group_of[static_cast<std::size_t>(s)]);
    return context;
  }

  // (sequences, padded, d), like that of one pass over the rest: the first row is that of the context's last id, which
  // belongs to the context's pass here.
  Tensor step_by_step(const SequenceBatch& batch, int depth, std::vector<int>& steps) const {
    const std::int64_t context_ids = batch.shared + 1;
    Context context = read_shared(batch, context_ids, depth);
    steps.assign(static_cast<std::size_t>(batch.size() * batch.padded), 0);
    const Tensor z = Tensor::empty({batch.size(), batch.padded, context.z.dim(2)}, context.z.dtype(), model_.device());
    for (std::int64_t s = 0; s < batch.size(); ++s) {
      const std::int64_t group = batch.group_of[static_cast<std::size_t>(s)];
      copy_rows(z, s * batch.padded, context.z, group * context_ids + batch.shared, 1);
      steps[s * batch.padded] = context.steps[group * context_ids + batch.shared];
    }
    std::vector<int> taken;
    for (std::int64_t t = 1; t < batch.padded; ++t) {
      const Tensor step = hidden(rest(batch, batch.shared + t, 1), depth, *context.cache, taken);
      for (std::int64_t s = 0; s < batch.size(); ++s) {
        copy_rows(z, s * batch.padded + t, step, s, 1);
        steps[s * batch.padded + t] = taken[s];
      }
    }
    return z;
  }

  // z (sequences, padded, d), whose first row is that of the first id after the shared ones; and the steps of its rows.
  void score_exit(const Tensor& z, const SequenceBatch& batch, std::size_t depth, std::span<const int> steps = {}) {
    std::vector<std::int32_t> targets;
    std::vector<std::size_t> owner;  // the request of each row
    for (const Sequence* s : batch.sequences) {
      for (const std::size_t i : s->requests) {
        targets.insert(targets.end(), requests_[i].continuation.begin(), requests_[i].continuation.end());
        owner.resize(targets.size(), i);
      }
    }
    const Tensor rows = Tensor::empty({static_cast<std::int64_t>(owner.size()), z.dim(2)}, z.dtype(), z.device());
    std::int64_t filled = 0;
    for (std::int64_t b = 0; b < batch.size(); ++b) {
      const Sequence& s = *batch.sequences[static_cast<std::size_t>(b)];
      const std::int64_t first = b * z.dim(1) + length(s.ids) - batch.shared - s.scored;
      for (const std::size_t request : s.requests) {
        copy_rows(rows, filled, z, first, s.scored);
        filled += s.scored;
        for (std::int64_t t = first; t < first + s.scored && !steps.empty(); ++t)
          scores_[request][depth].steps += steps[t];
      }
    }
    for (std::int64_t begin = 0; begin < filled; begin += kLogitRows) {
      const auto first = static_cast<std::size_t>(begin),
                 n = static_cast<std::size_t>(std::min(kLogitRows, filled - begin));
      add_rows(model_.logits(rows.rows(begin, static_cast<std::int64_t>(n))), std::span(targets).subspan(first, n),
               std::span(owner).subspan(first, n), depth);
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
        score.log_likelihood -= static_cast<double>(loss[r]);
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

void check_finite(const std::vector<std::vector<Score>>& scores, const Params& params) {
  for (const std::vector<Score>& by_depth : scores) {
    for (const Score& score : by_depth) {
      if (!std::isfinite(score.log_likelihood))
        fail("a log-likelihood is {}; {}", score.log_likelihood, blame_weights(params));
    }
  }
}

}  // namespace

std::vector<std::vector<Score>> score_requests(const LanguageModel& model, std::span<const Request> requests,
                                               const ScoreOptions& options) {
  check_ids(requests, model.config().vocab_size);
  // A cache serves one exit; several exits share more by coming from one pass.
  const Sharing sharing = options.kv != KvStrategy::full || options.exit ? Sharing::context
                          : options.depths.size() == 1                   ? Sharing::worth
                                                                         : Sharing::none;
  const std::vector<Group> groups = grouped(requests, sharing, model.config().context_length);
  Scorer scorer(model, requests, options);
  std::int64_t done = 0, tokens = 0;
  for (std::span<const Group> left = groups; !left.empty();) {
    const SequenceBatch batch(next_batch(left, options.batch_size));
    scorer.run(batch);
    left = left.subspan(batch.groups.size());
    for (const Sequence* s : batch.sequences) {
      done += static_cast<std::int64_t>(s->requests.size());
      for (const std::size_t i : s->requests) tokens += length(requests[i].context) + length(requests[i].continuation);
    }
    if (options.progress) options.progress(done, tokens);
  }
  check_finite(scorer.scores(), model.params());
  return scorer.scores();
}

}  // namespace grt
