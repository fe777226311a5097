// Packed weights that several products of a pass share (Kernels::hold): the panels of a second factor, kept from the
// product that packs them to the end of the outermost hold.
#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "core/tensor.h"

namespace grt::cpu {

// The place of one factor's panels. `packed`: they are there already.
struct Kept {
  Device* device = nullptr;
  Tensor memory;
  int uses = 0;           // in this pass
  bool repeated = false;  // was it used more than once in a pass?
  bool packed = false;

  template <class T>
  T* get(std::int64_t count) {
    constexpr std::int64_t kUnit = size_of(DType::i32);
    const std::int64_t units = (count * static_cast<std::int64_t>(sizeof(T)) + kUnit - 1) / kUnit;
    if (!memory || memory.numel() < units) memory = Tensor::empty({units}, DType::i32, *device);
    return memory.data<T>();
  }
};

class KeptPanels {
 public:
  void hold(const Tensor& weights);
  void let_go();

  // Where to keep the panels of a factor (k, n) that lies at `data`: null if it is no part of what is held, was not
  // used more than once in a pass, or is larger than kMostHeld (ops/hold.h).
  Kept* find(const void* data, std::int64_t row, std::int64_t col, std::int64_t k, std::int64_t n);

 private:
  struct Place {
    const void* data;
    std::int64_t row, col, k, n;
    auto operator<=>(const Place&) const = default;
  };

  Device* device_ = nullptr;
  const char *begin_ = nullptr, *end_ = nullptr;  // of what was held last
  int holds_ = 0;                                 // of it, one in another
  std::map<Place, Kept> places_;                  // their memory stays for the next hold
};

}  // namespace grt::cpu
