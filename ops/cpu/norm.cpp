// Layer normalization, a row at a time.
#include "ops/cpu/norm.h"

#include "ops/cpu/cpu.h"
#include "ops/cpu/reduce.h"

namespace grt::cpu {
namespace {

template <class T>
const T* data_or_null(const Tensor& t) {
  return t ? t.data<T>() : nullptr;
}

template <class T>
void normalize_row(const Tensor& y, const Tensor& mean, const Tensor& rstd, const T* x, const Tensor& w,
                   const Tensor& b, std::int64_t r, float eps) {
  const std::int64_t width = w.numel();
  const NormRow<T> row = normalize(y.data<T>() + r * width, x, w.data<T>(), data_or_null<T>(b), width, eps);
  mean.data<T>()[r] = row.mean;
  rstd.data<T>()[r] = row.rstd;
}

}  // namespace

void CpuKernels::layernorm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& w,
                           const Tensor& b, float eps) {
  visit_real(x.dtype(), [&]<class T>() {
    for_rows(x, [&](std::int64_t r) { normalize_row(y, mean, rstd, x.data<T>() + r * w.numel(), w, b, r, eps); });
  });
}

void CpuKernels::add_layernorm(const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                               const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, float eps) {
  visit_real(a.dtype(), [&]<class T>() {
    const std::int64_t width = w.numel();
    for_rows(a, [&](std::int64_t r) {
      T* const s = sum.data<T>() + r * width;
      for_vectors<T>(width, [&, p = a.data<T>() + r * width, q = b.data<T>() + r * width](std::int64_t c, int count) {
        store_part(s + c, load_part(p + c, count) + load_part(q + c, count), count);
      });
      normalize_row<T>(y, mean, rstd, s, w, bias, r, eps);
    });
  });
}

void CpuKernels::layernorm_backward(const Into& dx, const Into& dw, const Into& db, const Tensor& dy, const Tensor& x,
                                    const Tensor& w, const Tensor& mean, const Tensor& rstd) {
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t rows = x.shape().rows(), width = x.shape().last(), block = row_block(rows);
    const bool parameters = dw || db;
    Tensor parts;  // of each block of rows, dw and db side by side
    if (parameters) parts = Tensor::empty({row_blocks(rows), 2 * width}, x.dtype(), x.device());
    parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
      T* const part = parameters ? parts.data<T>() + begin / block * 2 * width : nullptr;
      if (parameters) std::fill_n(part, 2 * width, T(0));
      for (std::int64_t r = begin; r < end; ++r) {
        const T *const d = dy.data<T>() + r * width, *const in = x.data<T>() + r * width;
        const NormRow<T> row{mean.data<T>()[r], rstd.data<T>()[r]};
        if (parameters) add_parameter_gradients(part, part + width, d, in, row, width);
        if (!dx) continue;
        const NormGradient<T> gradient(d, in, w.data<T>(), row, width);
        for_vectors<T>(width, [&, to = dx.to.data<T>() + r * width](std::int64_t c, int count) {
          store_part(to + c, gradient.added_to(dx.add ? load_part(to + c, count) : Vec<T>{}, c, count), count);
        });
      }
    });
    if (dw) add_blocks(dw, parts.data<T>(), row_blocks(rows), 2 * width);
    if (db) add_blocks(db, parts.data<T>() + width, row_blocks(rows), 2 * width);
  });
}

}  // namespace grt::cpu
