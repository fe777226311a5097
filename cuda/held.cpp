#include "cuda/held.h"

namespace grt::cuda {

void HeldCopies::hold(const Tensor& weights) {
  const char* const begin = weights.data<char>();
  if (begin != begin_) copies_.clear();
  begin_ = begin;
  end_ = begin + weights.bytes();
  held_ = true;
  for (auto& [place, copy] : copies_) copy.current = false;
}

HeldCopies::Copy* HeldCopies::find(const Tensor& t) {
  const char* const at = t.data<char>();
  if (!held_ || at < begin_ || at >= end_) return nullptr;
  return &copies_[{at, t.shape().rows(), t.shape().last()}];
}

}  // namespace grt::cuda
