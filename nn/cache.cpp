#include "nn/cache.h"

#include "ops/kernels.h"

namespace grt {
namespace {
constexpr const char* kNames[] = {"full", "mean", "last", "first"};
}  // namespace

KvStrategy kv_strategy(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kNames[i]) return static_cast<KvStrategy>(i);
  fail("--kv: must be full, mean, last or first, not \"{}\"", name);
}

const char* name_of(KvStrategy strategy) { return kNames[static_cast<int>(strategy)]; }

KvCache::KvCache(const KvLayout& layout, KvStrategy strategy, std::int64_t batch, int heads, std::int64_t capacity,
                 std::int64_t head_size, DType dtype, Device& device)
    : layout_(layout), strategy_(layout.steps < 2 ? KvStrategy::full : strategy) {
  const Shape shape{batch, heads, capacity, head_size};
  for (int i = 0; i < layout.slots(strategy_); ++i)
    slots_.push_back({Tensor::empty(shape, dtype, device),
                      Tensor::empty(shape, dtype, device),
                      std::vector<std::int64_t>(batch),
                      {},
                      {}});
}

// Under a reduced strategy all steps of a core layer share a slot: each step's keys and values of the tokens under way
// lie behind what is kept of the past, where the next step's replace them.
int KvCache::place(int application) const {
  const int in_core = application - layout_.before, repeated = layout_.core * layout_.steps;
  if (strategy_ == KvStrategy::full || in_core < 0) return application;
  return layout_.before + (in_core < repeated ? in_core % layout_.core : in_core - repeated + layout_.core);
}

const KvSlot& KvCache::slot(int application) const {
  const int i = place(application);
  check(i < static_cast<int>(slots_.size()), "key/value cache: slot {} of {}", i, slots_.size());
  return slots_[i];
}

void KvCache::appended(int application, std::int64_t count) {
  if (strategy_ == KvStrategy::full || strategy_ == KvStrategy::last) return;  // the last step's are what lies there
  const int in_core = application - layout_.before;
  if (in_core < 0 || in_core >= layout_.core * layout_.steps) return;
  KvSlot& slot = slots_[place(application)];
  const int step = in_core / layout_.core;
  reduce(slot.keys, slot.held_keys, step, count);
  reduce(slot.values, slot.held_values, step, count);
}

// Takes a step's part of the `count` tokens behind the past into `held`; after the last step puts `held` there.
void KvCache::reduce(const Tensor& fresh, Tensor& held, int step, std::int64_t count) const {
  const std::int64_t rows = fresh.dim(0) * fresh.dim(1), capacity = fresh.dim(2), width = fresh.dim(3);
  const bool mean = strategy_ == KvStrategy::mean, last = step == layout_.steps - 1;
  Device& device = fresh.device();
  if (step == 0) held = Tensor::empty({fresh.dim(0), fresh.dim(1), count, width}, fresh.dtype(), device);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Tensor now = fresh.range((row * capacity + past) * width, {count, width});
    const Tensor kept = held.range(row * count * width, {count, width});
    if (mean) device.kernels().multiply({kept, step > 0}, now, 1.0f / static_cast<float>(layout_.steps));
    if (!mean && step == 0) device.copy(kept.raw(), now.raw(), now.bytes());
    if (last) device.copy(now.raw(), kept.raw(), now.bytes());
  }
  if (last) held = {};
}

KvCache KvCache::of_sequence(int first, int count, std::int64_t sequence) const {
  KvCache part;
  part.past = slot(first).taken.at(sequence);
  for (int i = first; i < first + count; ++i) {
    const Shape& all = slot(i).keys.shape();
    const Shape one{1, all[1], all[2], all[3]};
    const std::int64_t begin = sequence * one.numel();
    part.slots_.push_back({slot(i).keys.range(begin, one), slot(i).values.range(begin, one), {part.past}, {}, {}});
  }
  return part;
}

void KvCache::repeat(const KvCache& one) {
  past = one.past;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    KvSlot& to = slots_[i];
    const KvSlot& from = one.slots_.at(i);
    to.taken.assign(to.taken.size(), from.taken.at(0));
    for (std::size_t b = 0; b < to.taken.size(); ++b)
      for (const auto& [all, part] : {std::pair(to.keys, from.keys), std::pair(to.values, from.values)})
        part.device().copy(all.range(static_cast<std::int64_t>(b) * part.numel(), part.shape()).raw(), part.raw(),
                           part.bytes());
  }
}

std::int64_t KvCache::bytes() const {
  std::int64_t sum = 0;
  for (const KvSlot& slot : slots_) sum += static_cast<std::int64_t>(slot.keys.bytes() + slot.values.bytes());
  return sum;
}

}  // namespace grt
