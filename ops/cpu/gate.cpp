// The gated update of one recurrence, and its derivative.
#include <algorithm>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/vector_math.h"

namespace grt::cpu {
namespace {

// Calls f(r, shift) for every row r, with the row's draw times sigma.
template <class T, class F>
void for_rows(const Tensor& z, const GateNoise& noise, F&& f) {
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, z.shape().last()));
  parallel_for(z.shape().rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      f(r, noise.sigma == 0 ? T(0) : T(noise.sigma) * T(random_normal(noise.key, static_cast<std::uint64_t>(r))));
  });
}

template <class T>
void put(const Into& into, std::int64_t at, Vec<T> v, int count) {
  T* to = into.to.data<T>() + at;
  store_part(to, into.add ? load_part(to, count) + v : v, count);
}

}  // namespace

void CpuKernels::gate_mix(const Tensor& y, const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  visit_real(h.dtype(), [&]<class T>() {
    const std::int64_t width = z.shape().last();
    const T inverse = 1 / T(noise.tau);
    for_rows<T>(z, noise, [&](std::int64_t r, T shift) {
      for_vectors<T>(width, [&, row = r * width](std::int64_t i, int count) {
        const auto g = sigmoid<T>(load_part(z.data<T>() + row + i, count) * inverse + shift);
        const Vec<T> kept = load_part(h.data<T>() + row + i, count), fresh = load_part(o.data<T>() + row + i, count);
        store_part(y.data<T>() + row + i, g.value * kept + g.rest * fresh, count);
      });
    });
  });
}

// With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
// z is saved, not g, and eps is drawn again from its key.
void CpuKernels::gate_mix_backward(const Into& dz, const Into& dh, const Into& d_o, const Tensor& dy, const Tensor& z,
                                   const Tensor& h, const Tensor& o, const GateNoise& noise) {
  if (!dz && !dh && !d_o) return;
  visit_real(h.dtype(), [&]<class T>() {
    const std::int64_t width = z.shape().last();
    const T inverse = 1 / T(noise.tau);
    for_rows<T>(z, noise, [&](std::int64_t r, T shift) {
      for_vectors<T>(width, [&, row = r * width](std::int64_t i, int count) {
        const auto g = sigmoid<T>(load_part(z.data<T>() + row + i, count) * inverse + shift);
        const Vec<T> d = load_part(dy.data<T>() + row + i, count);
        if (dz) {
          const Vec<T> gap = load_part(h.data<T>() + row + i, count) - load_part(o.data<T>() + row + i, count);
          put<T>(dz, row + i, d * gap * g.value * g.rest * inverse, count);
        }
        if (dh) put<T>(dh, row + i, d * g.value, count);
        if (d_o) put<T>(d_o, row + i, d * g.rest, count);
      });
    });
  });
}

}  // namespace grt::cpu
