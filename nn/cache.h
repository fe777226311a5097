// Keys and values of earlier tokens, one slot for each application of an attention layer: a layer that is applied R
// times has R slots. The exact ("full") strategy: decoding with it equals recomputation.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace grt {

struct KvSlot {
  Tensor keys, values;  // (B, H, capacity, D)
};

struct KvCache {
  KvCache(int slots, std::int64_t batch, int heads, std::int64_t capacity, std::int64_t head_size, DType dtype,
          Device& device) {
    for (int i = 0; i < slots; ++i) {
      const Shape shape{batch, heads, capacity, head_size};
      slots_.push_back({Tensor::empty(shape, dtype, device), Tensor::empty(shape, dtype, device)});
    }
  }

  const KvSlot& slot(int i) const {
    check(i < static_cast<int>(slots_.size()), "key/value cache: slot {} of {}", i, slots_.size());
    return slots_[i];
  }
  std::int64_t capacity() const { return slots_.empty() ? 0 : slots_[0].keys.dim(2); }

  std::int64_t past = 0;  // tokens in the cache; whoever runs a forward pass advances it afterwards

 private:
  std::vector<KvSlot> slots_;
};

}  // namespace grt
