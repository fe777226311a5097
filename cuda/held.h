// Copies of held weights in bf16 (Kernels::hold): made when a product first needs one, and used until the outermost
// hold ends. Their memory goes back then, so that a graph made of a whole hold owns it.
#pragma once

#include <map>
#include <tuple>

#include "core/tensor.h"

namespace grt::cuda {

class HeldCopies {
 public:
  void hold(const Tensor& weights);
  void let_go();
  // The place for the copy of a tensor, empty if there is none yet; null unless the tensor lies in what is held.
  Tensor* find(const Tensor& t);

 private:
  using Place = std::tuple<const void*, std::int64_t, std::int64_t>;  // where it lies, rows, columns

  const char *begin_ = nullptr, *end_ = nullptr;  // of what is held
  int holds_ = 0;                                 // of it, one in another
  std::map<Place, Tensor> copies_;
};

}  // namespace grt::cuda
