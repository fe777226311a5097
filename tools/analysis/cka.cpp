// HSIC_1(K, L) of two Gram matrices is the product of their U-centred forms, element by element, over n (n - 3):
//   K^_ij = K_ij - sum_l K_il / (n-2) - sum_l K_lj / (n-2) + sum_lm K_lm / ((n-1)(n-2))  for i != j, and 0 for i = j,
// where the sums leave the diagonal out. (Szekely and Rizzo 2014; equal to the trace form of Song et al.) So with the
// centred matrices as rows of one, all pairs are one product.
#include "tools/analysis/cka.h"

#include <cmath>

#include "ops/ops.h"

namespace grt {
namespace {

// gram (n, n), symmetric, in place.
void u_center(std::span<double> gram, std::int64_t n) {
  std::vector<double> sums(n);
  double all = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    gram[i * n + i] = 0;
    for (std::int64_t j = 0; j < n; ++j) sums[i] += gram[i * n + j];
    all += sums[i];
  }
  const double m = static_cast<double>(n), mean = all / ((m - 1) * (m - 2));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      if (i != j) gram[i * n + j] += mean - (sums[i] + sums[j]) / (m - 2);
}

}  // namespace

void Cka::add(std::span<const Tensor> representations) {
  check(!representations.empty() && representations[0].shape().rank() == 2 && representations[0].dim(0) >= 4,
        "CKA: a mini-batch needs representations of at least 4 tokens");
  const auto count = static_cast<std::int64_t>(representations.size());
  const std::int64_t n = representations[0].dim(0);
  if (hsic_.empty()) hsic_.assign(count, std::vector<double>(count));
  check(count == static_cast<std::int64_t>(hsic_.size()), "CKA: {} representations after {}", count, hsic_.size());
  const Tensor centred = Tensor::empty({count, n * n}, DType::f64, representations[0].device());
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor& x = representations[i];
    check(x.dtype() == DType::f64 && x.shape() == Shape{n, x.shape().last()},
          "CKA: representation {} is {}; expected {} tokens in f64", i, x.shape(), n);
    const Tensor gram = linear(x, x).value();
    x.device().copy(centred.rows(i, 1).raw(), gram.raw(), gram.bytes());
    u_center({centred.rows(i, 1).data<double>(), static_cast<std::size_t>(n * n)}, n);
  }
  const Tensor products = linear(centred, centred).value();
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < count; ++j)
      hsic_[i][j] += products.data<double>()[i * count + j] / (static_cast<double>(n) * static_cast<double>(n - 3));
  ++batches_;
}

std::vector<std::vector<double>> Cka::matrix() const {
  std::vector<std::vector<double>> cka = hsic_;
  for (std::size_t i = 0; i < cka.size(); ++i)
    for (std::size_t j = 0; j < cka.size(); ++j) cka[i][j] = hsic_[i][j] / std::sqrt(hsic_[i][i] * hsic_[j][j]);
  return cka;
}

}  // namespace grt
