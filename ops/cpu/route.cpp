// Top-k selection and the rows that it names. Rows of a sequence are named once each, so they are moved independently.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

// Calls f(row of the k, row of the T) for every entry of index (B, k), where both count through all sequences.
template <class F>
void for_named(const Tensor& index, std::int64_t time, std::int64_t width, F&& f) {
  const std::int64_t k = index.dim(1), grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
  parallel_for(index.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i, i / k * time + index.data<std::int32_t>()[i]);
  });
}

// 1 / (1 + e^-z) and what it lacks of 1.
template <class T>
std::pair<T, T> gate(T z) {
  const auto g = sigmoid<T>(broadcast(z));
  return {g.value[0], g.rest[0]};
}

}  // namespace

void CpuKernels::top_k(const Tensor& index, const Tensor& chosen, const Tensor& scores) {
  visit_real(scores.dtype(), [&]<class T>() {
    const std::int64_t time = scores.dim(1), k = index.dim(1);
    parallel_for(scores.dim(0), 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(time));
      for (std::int64_t b = begin; b < end; ++b) {
        const T* const s = scores.data<T>() + b * time;
        std::iota(order.begin(), order.end(), 0);
        // Without the NaNs being last this would be no order.
        const auto before = [s](std::int32_t i, std::int32_t j) {
          const bool i_is = s[i] == s[i], j_is = s[j] == s[j];
          if (i_is != j_is) return i_is;
          return i_is && s[i] != s[j] ? s[i] > s[j] : i < j;
        };
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), before);
        std::sort(order.begin(), order.begin() + k);
        std::copy_n(order.begin(), k, index.data<std::int32_t>() + b * k);
        std::fill_n(chosen.data<T>() + b * time, time, T(0));
        for (std::int64_t i = 0; i < k; ++i) chosen.data<T>()[b * time + order[i]] = 1;
      }
    });
  });
}

void CpuKernels::gather_rows(const Tensor& y, const Tensor& x, const Tensor& index) {
  const std::size_t bytes = static_cast<std::size_t>(x.shape().last()) * size_of(x.dtype());
  for_named(index, x.dim(1), x.shape().last(), [&](std::int64_t to, std::int64_t from) {
    std::memcpy(y.data<char>() + to * bytes, x.data<char>() + from * bytes, bytes);
  });
}

void CpuKernels::gather_rows_backward(const Into& dx, const Tensor& dy, const Tensor& index) {
  if (!dx) return;
  visit_real(dy.dtype(), [&]<class T>() {
    const std::int64_t width = dy.shape().last();
    for_named(index, dx.to.dim(1), width, [&](std::int64_t from, std::int64_t to) {
      for_vectors<T>(width,
                     [&, x = dx.to.data<T>() + to * width, d = dy.data<T>() + from * width](std::int64_t c, int n) {
                       store_part(x + c, load_part(x + c, n) + load_part(d + c, n), n);
                     });
    });
  });
}

void CpuKernels::gated_scatter(const Tensor& y, const Tensor& h, const Tensor& index, const Tensor& z, const Tensor& o,
                               float scale) {
  copy(Into{y}, h);
  visit_real(h.dtype(), [&]<class T>() {
    const std::int64_t width = h.shape().last();
    for_named(index, h.dim(1), width, [&](std::int64_t from, std::int64_t to) {
      const T g = T(scale) * gate(z.data<T>()[from]).first;
      for_vectors<T>(width,
                     [&, sum = y.data<T>() + to * width, add = o.data<T>() + from * width](std::int64_t c, int n) {
                       store_part(sum + c, load_part(sum + c, n) + g * load_part(add + c, n), n);
                     });
    });
  });
}

// With s = sigmoid(z), g = scale s:  do = g dy[index],  dz = g (1 - s) <dy[index], o>.
void CpuKernels::gated_scatter_backward(const Into& dz, const Into& d_o, const Tensor& dy, const Tensor& index,
                                        const Tensor& z, const Tensor& o, float scale) {
  if (!dz && !d_o) return;
  visit_real(dy.dtype(), [&]<class T>() {
    const std::int64_t width = dy.shape().last();
    for_named(index, dy.dim(1), width, [&](std::int64_t row, std::int64_t from) {
      const auto [s, rest] = gate(z.data<T>()[row]);
      const T g = T(scale) * s;
      const T* const d = dy.data<T>() + from * width;
      Vec<T> along = {};
      for_vectors<T>(width, [&](std::int64_t c, int n) {
        along += load_part(d + c, n) * load_part(o.data<T>() + row * width + c, n);
        if (!d_o) return;
        T* const to = d_o.to.data<T>() + row * width + c;
        const Vec<T> share = g * load_part(d + c, n);
        store_part(to, d_o.add ? load_part(to, n) + share : share, n);
      });
      if (!dz) return;
      T& to = dz.to.data<T>()[row];
      to = (dz.add ? to : T(0)) + g * rest * sum_of<T>(along);
    });
  });
}

}  // namespace grt::cpu
