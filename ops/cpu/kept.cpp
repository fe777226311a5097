#include "ops/cpu/kept.h"

#include "ops/hold.h"

namespace grt::cpu {

void KeptPanels::hold(const Tensor& weights) {
  const char* const begin = static_cast<const char*>(weights.raw());
  if (begin != begin_) places_.clear();
  device_ = &weights.device();
  begin_ = begin;
  end_ = begin + weights.bytes();
  held_ = true;
  for (auto& [place, kept] : places_) {
    kept.repeated |= kept.uses > 1;
    kept.uses = 0;
    kept.packed = false;
  }
}

void KeptPanels::let_go() { held_ = false; }

Kept* KeptPanels::find(const void* data, std::int64_t row, std::int64_t col, std::int64_t k, std::int64_t n) {
  if (!held_ || k * n > kMostHeld) return nullptr;
  const char* const at = static_cast<const char*>(data);
  if (at < begin_ || at >= end_) return nullptr;
  Kept& kept = places_[{data, row, col, k, n}];
  kept.device = device_;
  return ++kept.uses > 1 || kept.repeated ? &kept : nullptr;
}

}  // namespace grt::cpu
