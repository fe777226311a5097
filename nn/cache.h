// Keys and values of earlier tokens. A layer that is applied R times in a pass has R of them for each token; either all
// are kept, and decoding equals recomputation, or one is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace grt {

// What stays of a repeated layer's keys and values once a token is done: all, or their mean over the steps, or those of
// the last or the first step. While a pass runs, its tokens see one another's keys and values of the same step under
// every strategy, so a prompt in one pass is computed exactly.
enum class KvStrategy { full, mean, last, first };

KvStrategy kv_strategy(const std::string& name);  // throws Error naming --kv
const char* name_of(KvStrategy strategy);

// The applications of attention layers in a pass, in their order: `before` layers once, `core` layers `steps` times,
// `after` layers once.
struct KvLayout {
  int before = 0, core = 0, steps = 0, after = 0;

  int applications() const { return before + core * steps + after; }
  int slots(KvStrategy strategy) const {
    return strategy == KvStrategy::full || steps < 2 ? applications() : before + core + after;
  }
};

struct KvSlot {
  Tensor keys, values;              // (B, H, capacity, D)
  std::vector<std::int64_t> taken;  // by sequence: the tokens in a slot that does not get all of them (mor)
  Tensor held_keys, held_values;    // (B, H, n, D): of the n tokens under way, what will be kept; within a pass alone
};

struct KvCache {
  KvCache(const KvLayout& layout, KvStrategy strategy, std::int64_t batch, int heads, std::int64_t capacity,
          std::int64_t head_size, DType dtype, Device& device);

  const KvSlot& slot(int application) const;
  std::int64_t& taken(int application, std::int64_t sequence) {
    return slots_.at(place(application)).taken.at(sequence);
  }

  // To be called when the application has put the keys and values of `count` tokens behind those of the past.
  void appended(int application, std::int64_t count);

  // `count` applications of one sequence from `first` on, in the same memory; its past is what the first of them has
  // taken. Of a full cache.
  KvCache of_sequence(int first, int count, std::int64_t sequence) const;

  void repeat(const KvCache& one);  // makes each sequence what `one`, of a single sequence, is

  std::int64_t capacity() const { return slots_.empty() ? 0 : slots_[0].keys.dim(2); }
  std::int64_t bytes() const;  // of keys and values

  std::int64_t past = 0;  // tokens in the cache; whoever runs a forward pass advances it afterwards

 private:
  KvCache() = default;
  int place(int application) const;
  void reduce(const Tensor& fresh, Tensor& held, int step, std::int64_t count) const;

  KvLayout layout_;
  KvStrategy strategy_ = KvStrategy::full;
  std::vector<KvSlot> slots_;
};

}  // namespace grt
