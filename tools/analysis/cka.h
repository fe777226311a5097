// Linear CKA: how alike two representations of the same tokens are, whatever rotation and scale lie between them.
// Source: Kornblith et al. 2019, arXiv:1905.00414; the unbiased estimate over mini-batches: Nguyen et al. 2021,
// arXiv:2010.15327, with the HSIC of Song et al. 2012. Memory: representations * n^2 for mini-batches of n tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace grt {

class Cka {
 public:
  // One mini-batch: representation i of n >= 4 tokens, (n, width of i), all f64. Every call brings equally many
  // representations, in the same order.
  void add(std::span<const Tensor> representations);

  std::int64_t batches() const { return batches_; }
  // Element (i, j): 1 for equal ones, about 0 for independent ones, of which it may be a little below 0.
  std::vector<std::vector<double>> matrix() const;

 private:
  std::int64_t batches_ = 0;
  std::vector<std::vector<double>> hsic_;  // sums over the mini-batches
};

}  // namespace grt
