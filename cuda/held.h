// Copies of held weights in bf16 (Kernels::hold): made when a product first needs one, and used until the hold ends.
#pragma once

#include <map>
#include <tuple>

#include "core/tensor.h"

namespace grt::cuda {

class HeldCopies {
 public:
  struct Copy {
    Tensor memory;         // of no copy yet: none
    bool current = false;  // does it hold the values of this hold?
  };

  void hold(const Tensor& weights);
  void let_go() { held_ = false; }
  // The place for the copy of a tensor; null unless the tensor lies in what is held.
  Copy* find(const Tensor& t);

 private:
  using Place = std::tuple<const void*, std::int64_t, std::int64_t>;  // where it lies, rows, columns

  const char *begin_ = nullptr, *end_ = nullptr;  // of what was held last
  bool held_ = false;
  std::map<Place, Copy> copies_;  // their memory stays for the next hold
};

}  // namespace grt::cuda
