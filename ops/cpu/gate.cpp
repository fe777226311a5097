// The gated update of one recurrence, alone and together with what the next one reads, and the derivatives.
#include <algorithm>

#include "ops/cpu/cpu.h"
#include "ops/cpu/noise.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/reduce.h"

namespace grt::cpu {
namespace {

template <class T>
void put(const Into& into, std::int64_t at, Vec<T> v, int count) {
  T* to = into.to.data<T>() + at;
  store_part(to, into.add ? load_part(to, count) + v : v, count);
}

// The update in row r of (R, C) tensors.
template <class T>
struct Row {
  const T *z, *h, *o;
  std::int64_t begin, width;
  T inverse, shift;  // g = sigmoid(z inverse + shift), the row's draw times sigma

  Row(std::int64_t r, const Tensor& zs, const Tensor& hs, const Tensor& os, const GateNoise& noise)
      : z(zs.data<T>()), h(hs.data<T>()), o(os.data<T>()), begin(r * zs.shape().last()), width(zs.shape().last()) {
    inverse = 1 / T(noise.tau);
    shift = noise.sigma == 0 ? T(0) : T(noise.sigma) * T(random_normal(noise.key, static_cast<std::uint64_t>(r)));
  }

  void mix(T* y) const {
    for_vectors<T>(width, [&](std::int64_t c, int count) {
      const std::int64_t i = begin + c;
      const auto g = sigmoid<T>(load_part(z + i, count) * inverse + shift);
      const Vec<T> kept = load_part(h + i, count), fresh = load_part(o + i, count);
      store_part(y + i, g.value * kept + g.rest * fresh, count);
    });
  }

  // With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
  // z is saved, not g, and eps is drawn again from its key. dy: of the elements from c on.
  void put_gradients(const Into& dz, const Into& dh, const Into& d_o, Vec<T> dy, std::int64_t c, int count) const {
    const std::int64_t i = begin + c;
    const auto g = sigmoid<T>(load_part(z + i, count) * inverse + shift);
    if (dz) {
      const Vec<T> gap = load_part(h + i, count) - load_part(o + i, count);
      put<T>(dz, i, dy * gap * g.value * g.rest * inverse, count);
    }
    if (dh) put<T>(dh, i, dy * g.value, count);
    if (d_o) put<T>(d_o, i, dy * g.rest, count);
  }
};

// y = x + sigma N(0,1) for the elements [begin, end) of a tensor.
template <class T>
void add_noise_to(T* y, const T* x, std::int64_t begin, std::int64_t end, const StateNoise& noise) {
  float drawn[kNormals];
  for (std::int64_t first = begin / 4 * 4; first < end; first += kNormals) {
    normals(noise.key, static_cast<std::uint64_t>(first), drawn);
    const std::int64_t stop = std::min(end, first + kNormals);
    for (std::int64_t i = std::max(begin, first); i < stop; ++i) y[i] = x[i] + T(noise.sigma) * T(drawn[i - first]);
  }
}

}  // namespace

void CpuKernels::gate_mix(const Tensor& y, const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise) {
  visit_real(h.dtype(),
             [&]<class T>() { for_rows(z, [&](std::int64_t r) { Row<T>(r, z, h, o, noise).mix(y.data<T>()); }); });
}

void CpuKernels::gate_mix_backward(const Into& dz, const Into& dh, const Into& d_o, const Tensor& dy, const Tensor& z,
                                   const Tensor& h, const Tensor& o, const GateNoise& noise) {
  if (!dz && !dh && !d_o) return;
  visit_real(h.dtype(), [&]<class T>() {
    for_rows(z, [&](std::int64_t r) {
      const Row<T> row(r, z, h, o, noise);
      for_vectors<T>(row.width, [&](std::int64_t c, int count) {
        row.put_gradients(dz, dh, d_o, load_part(dy.data<T>() + row.begin + c, count), c, count);
      });
    });
  });
}

void CpuKernels::gate_step(const NextState& next, const Tensor& z, const Tensor& h, const Tensor& o, const Tensor& w,
                           const GateNoise& noise, const StateNoise& state_noise, float eps) {
  visit_real(h.dtype(), [&]<class T>() {
    for_rows(z, [&](std::int64_t r) {
      const Row<T> row(r, z, h, o, noise);
      T* const y = next.y.data<T>();
      row.mix(y);
      if (next.noisy) add_noise_to(next.noisy.data<T>(), y, row.begin, row.begin + row.width, state_noise);
      const NormRow<T> norm =
          normalize<T>(next.normed.data<T>() + row.begin, y + row.begin, w.data<T>(), nullptr, row.width, eps);
      next.mean.data<T>()[r] = norm.mean;
      next.rstd.data<T>()[r] = norm.rstd;
    });
  });
}

// Rows in the blocks of layernorm_backward, whose order of summation dw has.
void CpuKernels::gate_step_backward(const Into& dz, const Into& dh, const Into& d_o, const Into& dw,
                                    const NextStateGradients& d, const NextState& next, const Tensor& z,
                                    const Tensor& h, const Tensor& o, const Tensor& w, const GateNoise& noise) {
  visit_real(h.dtype(), [&]<class T>() {
    const std::int64_t rows = z.shape().rows(), width = z.shape().last(), block = row_block(rows);
    const T *const dy = d.y ? d.y.data<T>() : nullptr, *const dnoisy = d.noisy ? d.noisy.data<T>() : nullptr;
    Tensor parts;  // dw of each block, and a sum that none asks for
    if (dw) parts = Tensor::empty({row_blocks(rows), 2 * width}, h.dtype(), h.device());
    parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
      T* const part = dw ? parts.data<T>() + begin / block * 2 * width : nullptr;
      if (dw) std::fill_n(part, 2 * width, T(0));
      for (std::int64_t r = begin; r < end; ++r) {
        const Row<T> row(r, z, h, o, noise);
        const auto total = [&](std::int64_t c, int count) {
          Vec<T> sum = dy ? load_part(dy + row.begin + c, count) : Vec<T>{};
          return dnoisy ? sum + load_part(dnoisy + row.begin + c, count) : sum;
        };
        if (!d.normed) {
          for_vectors<T>(width, [&](std::int64_t c, int n) { row.put_gradients(dz, dh, d_o, total(c, n), c, n); });
          continue;
        }
        const T *const dn = d.normed.data<T>() + row.begin, *const y = next.y.data<T>() + row.begin;
        const NormRow<T> norm{next.mean.data<T>()[r], next.rstd.data<T>()[r]};
        if (dw) add_parameter_gradients(part, part + width, dn, y, norm, width);
        const NormGradient<T> through(dn, y, w.data<T>(), norm, width);
        for_vectors<T>(width, [&](std::int64_t c, int n) {
          row.put_gradients(dz, dh, d_o, through.added_to(total(c, n), c, n), c, n);
        });
      }
    });
    if (dw) add_blocks(dw, parts.data<T>(), row_blocks(rows), 2 * width);
  });
}

}  // namespace grt::cpu
