#include "ops/cpu/kept.h"

#include <algorithm>

#include "ops/hold.h"

namespace grt::cpu {

void KeptPanels::hold(const Tensor& weights) {
  const char* const begin = static_cast<const char*>(weights.raw());
  if (begin != begin_) {
    places_.clear();
    holds_ = 0;
  }
  device_ = &weights.device();
  begin_ = begin;
  end_ = begin + weights.bytes();
  for (auto& [place, kept] : places_) {
    kept.uses = 0;
    kept.packed &= holds_ > 0;
  }
  ++holds_;
}

void KeptPanels::let_go() { holds_ = std::max(0, holds_ - 1); }

Kept* KeptPanels::find(const void* data, std::int64_t row, std::int64_t col, std::int64_t k, std::int64_t n) {
  if (holds_ == 0 || k * n > kMostHeld) return nullptr;
  const char* const at = static_cast<const char*>(data);
  if (at < begin_ || at >= end_) return nullptr;
  Kept& kept = places_[{data, row, col, k, n}];
  kept.device = device_;
  kept.repeated |= ++kept.uses > 1;
  return kept.repeated ? &kept : nullptr;
}

}  // namespace grt::cpu
