// Keys and values of earlier tokens, one slot for each application of an attention layer: a layer that is applied R
// times has R slots. The exact ("full") strategy: decoding with it equals recomputation.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace grt {

struct KvSlot {
  Tensor keys, values;              // (B, H, capacity, D)
  std::vector<std::int64_t> taken;  // by sequence: the tokens in a slot that does not get all of them (mor)
};

struct KvCache {
  KvCache(int slots, std::int64_t batch, int heads, std::int64_t capacity, std::int64_t head_size, DType dtype,
          Device& device) {
    for (int i = 0; i < slots; ++i) {
      const Shape shape{batch, heads, capacity, head_size};
      slots_.push_back(
          {Tensor::empty(shape, dtype, device), Tensor::empty(shape, dtype, device), std::vector<std::int64_t>(batch)});
    }
  }

  const KvSlot& slot(int i) const {
    check(i < static_cast<int>(slots_.size()), "key/value cache: slot {} of {}", i, slots_.size());
    return slots_[i];
  }
  std::int64_t& taken(int i, std::int64_t sequence) { return slots_.at(i).taken.at(sequence); }

  // `count` slots of one sequence from `first` on, in the same memory; its past is what the first of them has taken.
  KvCache of_sequence(int first, int count, std::int64_t sequence) const {
    KvCache part;
    part.past = slot(first).taken.at(sequence);
    for (int i = first; i < first + count; ++i) {
      const Shape& all = slot(i).keys.shape();
      const Shape one{1, all[1], all[2], all[3]};
      const std::int64_t begin = sequence * one.numel();
      part.slots_.push_back({slot(i).keys.range(begin, one), slot(i).values.range(begin, one), {part.past}});
    }
    return part;
  }

  // Makes each sequence what `one`, of a single sequence, is.
  void repeat(const KvCache& one) {
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

  std::int64_t capacity() const { return slots_.empty() ? 0 : slots_[0].keys.dim(2); }

  std::int64_t past = 0;  // tokens in the cache; whoever runs a forward pass advances it afterwards

 private:
  KvCache() = default;

  std::vector<KvSlot> slots_;
};

}  // namespace grt
