// A pass works on rows: entered_ tells which tokens they are, under_way_ which of them are left.
#include "nn/cache.h"

#include <algorithm>
#include <utility>

namespace grt {
namespace {
constexpr const char* kNames[] = {"full", "mean", "last", "first"};

void check_room(const TokenRun& run, std::int64_t capacity) {
  check(run.past + run.count <= capacity, "key/value cache: {} + {} tokens do not fit into one of {}", run.past,
        run.count, capacity);
}

}  // namespace

KvStrategy kv_strategy(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kNames[i]) return static_cast<KvStrategy>(i);
  fail("--kv: must be full, mean, last or first, not \"{}\"", name);
}

const char* name_of(KvStrategy strategy) { return kNames[static_cast<int>(strategy)]; }

KvCache::KvCache(const KvLayout& layout, KvStrategy strategy, std::int64_t batch, int heads, std::int64_t capacity,
                 std::int64_t head_size, DType dtype, Device& device)
    : layout_(layout), strategy_(layout.steps < 2 ? KvStrategy::full : strategy), lengths_(batch) {
  const Shape shape{batch, heads, capacity, head_size};
  for (int i = 0; i < layout.slots(strategy_); ++i) {
    KvSlot& slot = slots_.emplace_back();
    slot.keys = Tensor::empty(shape, dtype, device);
    slot.values = Tensor::empty(shape, dtype, device);
    slot.taken.resize(batch);
  }
}

std::int64_t KvCache::bytes() const {
  std::int64_t sum = 0;
  for (const KvSlot& slot : slots_) sum += static_cast<std::int64_t>(slot.keys.bytes() + slot.values.bytes());
  return sum;
}

// Under a reduced strategy all steps of a core layer share a slot: each step's keys and values of the tokens under way
// lie behind what is kept of the past, where the next step's replace them.
int KvCache::place(int application) const {
  const int in_core = application - layout_.before, repeated = layout_.core * layout_.steps;
  if (strategy_ == KvStrategy::full || in_core < 0) return application;
  return layout_.before + (in_core < repeated ? in_core % layout_.core : in_core - repeated + layout_.core);
}

void KvCache::check_sequence(std::int64_t sequence) const {
  check(0 <= sequence && sequence < sequences(), "key/value cache: sequence {} of {}", sequence, sequences());
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  check_sequence(sequence);
  return lengths_[sequence];
}

const KvSlot& KvCache::slot(int application) const {
  const int i = place(application);
  check(i < static_cast<int>(slots_.size()), "key/value cache: slot {} of {}", i, slots_.size());
  return slots_[i];
}

void KvCache::expect(std::int64_t sequence, std::int64_t count) {
  std::int64_t past = length(sequence);
  for (const TokenRun& run : expected_)
    if (run.sequence == sequence) past += run.count;
  expected_.push_back({sequence, past, count});
}

void KvCache::place_runs() {
  constexpr std::int64_t kWords = sizeof(std::int64_t) / size_of(DType::i32);
  check(expected_.size() <= lengths_.size(), "key/value cache: {} runs of {} sequences", expected_.size(),
        lengths_.size());
  for (const TokenRun& run : expected_) check_room(run, capacity());
  if (!places_) places_ = Tensor::empty({sequences() * kWords}, DType::i32, slot(0).keys.device());
  std::vector<std::int64_t> pasts;
  for (TokenRun& run : expected_) {
    run.place = places_.data<std::int64_t>() + pasts.size();
    pasts.push_back(run.past);
  }
  places_.device().copy(places_.raw(), pasts.data(), pasts.size() * sizeof(std::int64_t));
}

void KvCache::replayed(const Shape& tokens) {
  enter(tokens);
  leave();
}

void KvCache::forget(std::int64_t sequence, std::int64_t length) {
  check_sequence(sequence);
  lengths_[sequence] = length;
  for (KvSlot& slot : slots_) {
    std::vector<std::int32_t>& taken = slot.taken[sequence];
    while (!taken.empty() && taken.back() >= length) taken.pop_back();
  }
}

void KvCache::copy_sequence(std::int64_t sequence, const KvCache& from, std::int64_t original) {
  check_sequence(sequence);
  check(slots_.size() == from.slots_.size(), "key/value cache: {} slots are not those of a cache with {}",
        slots_.size(), from.slots_.size());
  lengths_[sequence] = from.length(original);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    KvSlot& to = slots_[i];
    const KvSlot& other = from.slots_[i];
    to.taken[sequence] = other.taken[original];
    const Shape& all = to.keys.shape();
    const Shape one{1, all[1], all[2], all[3]};
    for (const auto& [mine, theirs] : {std::pair(to.keys, other.keys), std::pair(to.values, other.values)})
      mine.device().copy(mine.range(sequence * one.numel(), one).raw(), theirs.range(original * one.numel(), one).raw(),
                         one.numel() * size_of(mine.dtype()));
  }
}

// --- within a pass ---------------------------------------------------------------------------------------------------

void KvCache::enter(const Shape& tokens) {
  if (expected_.empty()) {
    check(tokens[0] == sequences(), "key/value cache: {} sequences, but it is one of {}", tokens[0], sequences());
    for (std::int64_t b = 0; b < sequences(); ++b) expect(b, tokens[1]);
  }
  runs_ = std::exchange(expected_, {});
  entered_.clear();
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const TokenRun& run = runs_[i];
    check_room(run, capacity());
    for (std::int64_t t = 0; t < run.count; ++t)
      entered_.push_back(
          {run.sequence, run.past + t, static_cast<std::int64_t>(entered_.size()), static_cast<std::int64_t>(i)});
  }
  check(static_cast<std::int64_t>(entered_.size()) == tokens.numel(),
        "key/value cache: {} tokens where {} are expected", tokens.numel(), entered_.size());
  under_way_ = entered_;
}

std::vector<TokenRun> KvCache::runs_of(std::span<const Token> tokens) {
  std::vector<TokenRun> runs;
  const Token* before = nullptr;
  for (const Token& token : tokens) {
    if (before && before->run == token.run && before->row + 1 == token.row)
      ++runs.back().count;
    else
      runs.push_back({token.sequence, token.position, 1});
    before = &token;
  }
  return runs;
}

void KvCache::take(int application, std::span<const std::int32_t> rows) {
  routed_ = true;
  runs_.clear();
  std::int64_t run = -1;
  for (const std::int32_t row : rows) {
    check(0 <= row && row < static_cast<std::int64_t>(under_way_.size()), "key/value cache: row {} of {} under way",
          row, under_way_.size());
    const Token& token = under_way_[row];
    std::vector<std::int32_t>& taken = slots_[place(application)].taken[token.sequence];
    if (token.run == run)
      ++runs_.back().count;
    else
      runs_.push_back({token.sequence, static_cast<std::int64_t>(taken.size()), 1});
    run = token.run;
    taken.push_back(static_cast<std::int32_t>(token.position));
  }
}

void KvCache::appended(int application) {
  const int in_core = application - layout_.before;
  if (!moves() || in_core < 0 || in_core >= layout_.core * layout_.steps) return;
  const int step = in_core / layout_.core;
  const bool mean = strategy_ == KvStrategy::mean;
  if (mean || step == 0)
    hold(slots_[place(application)], mean ? 1.0f / static_cast<float>(layout_.steps) : 1.0f, step > 0);
}

void KvCache::halt(std::span<const std::int32_t> going, int steps) {
  std::vector<Token> stopped, on;
  std::size_t next = 0;
  for (std::size_t row = 0; row < under_way_.size(); ++row) {
    const bool goes = next < going.size() && going[next] == static_cast<std::int32_t>(row);
    (goes ? on : stopped).push_back(under_way_[row]);
    next += goes;
  }
  // Where tokens are routed, one that takes no step has no keys and values there.
  if (steps < layout_.steps && !stopped.empty() && !routed_) {
    check(steps > 0 || on.empty() || !moves(), "key/value cache: {} of {} tokens stop before their first step",
          stopped.size(), under_way_.size());
    stop_at(steps, stopped);
  }
  under_way_ = std::move(on);
  take_all();
}

void KvCache::take_up_all() {
  under_way_ = entered_;
  take_all();
}

void KvCache::leave() {
  for (int layer = 0; layer < layout_.core && moves(); ++layer) put_back(slots_[layout_.before + layer]);
  for (const Token& token : entered_) lengths_[token.sequence] = token.position + 1;
}

Tensor KvCache::kept(const Tensor& cache, const Token& first, std::int64_t head, std::int64_t count) {
  const std::int64_t heads = cache.dim(1), capacity = cache.dim(2), width = cache.dim(3);
  return cache.range(((first.sequence * heads + head) * capacity + first.position) * width, {count, width});
}

Tensor KvCache::held(const Tensor& held, const Token& first, std::int64_t head, std::int64_t count) const {
  return held.range((head * held.dim(1) + first.row) * held.dim(2), {count, held.dim(2)});
}

// held = weight times what lies in the cache of the tokens under way, or that added.
void KvCache::hold(KvSlot& slot, float weight, bool add) const {
  for (const auto& [cache, to] : {std::pair(&slot.keys, &slot.held_keys), std::pair(&slot.values, &slot.held_values)}) {
    const std::int64_t heads = cache->dim(1);
    if (!add)
      *to = Tensor::empty({heads, static_cast<std::int64_t>(entered_.size()), cache->dim(3)}, cache->dtype(),
                          cache->device());
    const Token* first = under_way_.data();
    for (const TokenRun& run : runs_) {
      for (std::int64_t head = 0; head < heads; ++head)
        cache->device().kernels().multiply({held(*to, *first, head, run.count), add},
                                           kept(*cache, *first, head, run.count), weight);
      first += run.count;
    }
  }
}

void KvCache::put_back(KvSlot& slot) const {
  for (const auto& [cache, from] :
       {std::pair(&slot.keys, &slot.held_keys), std::pair(&slot.values, &slot.held_values)}) {
    const Token* first = entered_.data();
    for (const TokenRun& run : runs_of(entered_)) {
      for (std::int64_t head = 0; head < cache->dim(1) && *from; ++head) {
        const Tensor to = kept(*cache, *first, head, run.count);
        to.device().copy(to.raw(), held(*from, *first, head, run.count).raw(), to.bytes());
      }
      first += run.count;
    }
    *from = {};
  }
}

// The tokens have taken `steps` steps, fewer than there are. Where all steps have a slot, the last one's keys and
// values are copied into those of the later ones (of none: zeros); a mean counts them once more for each.
void KvCache::stop_at(int steps, std::span<const Token> tokens) {
  const int missing = layout_.steps - steps;
  substituted_ += static_cast<std::int64_t>(tokens.size()) * missing;
  const auto of_each = [&](const Tensor& cache, auto&& f) {
    const Token* first = tokens.data();
    for (const TokenRun& run : runs_of(tokens)) {
      for (std::int64_t head = 0; head < cache.dim(1); ++head) f(*first, head, run.count);
      first += run.count;
    }
  };
  const auto copy = [&](const Tensor& to, const Tensor& from) {
    of_each(to, [&](const Token& first, std::int64_t head, std::int64_t count) {
      const Tensor place = kept(to, first, head, count);
      if (steps == 0)
        to.device().zero(place.raw(), place.bytes());
      else
        to.device().copy(place.raw(), kept(from, first, head, count).raw(), place.bytes());
    });
  };
  const auto count_again = [&](const Tensor& sum, const Tensor& cache) {
    const float weight = static_cast<float>(missing) / static_cast<float>(layout_.steps);
    of_each(cache, [&](const Token& first, std::int64_t head, std::int64_t count) {
      cache.device().kernels().multiply({held(sum, first, head, count), true}, kept(cache, first, head, count), weight);
    });
  };
  for (int layer = 0; layer < layout_.core; ++layer) {
    const int last = layout_.before + std::max(steps - 1, 0) * layout_.core + layer;
    KvSlot& from = slots_[place(last)];
    if (strategy_ == KvStrategy::full || steps == 0) {
      for (int step = steps; step < layout_.steps; ++step) {
        KvSlot& to = slots_[place(layout_.before + step * layout_.core + layer)];
        copy(to.keys, from.keys);
        copy(to.values, from.values);
      }
    } else if (strategy_ == KvStrategy::mean) {
      count_again(from.held_keys, from.keys);
      count_again(from.held_values, from.values);
    }
  }
}

}  // namespace grt
