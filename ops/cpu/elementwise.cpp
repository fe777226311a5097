// Elementwise kernels: one pass over memory, cut into chunks of fixed size.
#include <algorithm>
#include <utility>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/noise.h"

namespace grt::cpu {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements
static_assert(kChunk % kNormals == 0);

// y[i] = f(x[0][i], x[1][i], ...), or += it. y may be one of the x.
template <class T, std::size_t n, class F>
void map(const Into& y, const Tensor* const (&x)[n], F f) {
  const auto value = [&]<std::size_t... k>(std::index_sequence<k...>, std::int64_t i, int count) {
    return f(load_part(x[k]->template data<T>() + i, count)...);
  };
  const auto pass = [&](auto put) {
    parallel_for(y.to.numel(), kChunk, [&](std::int64_t begin, std::int64_t end) {
      for_vectors<T>(end - begin, [&](std::int64_t i, int count) {
        put(y.to.data<T>() + begin + i, value(std::make_index_sequence<n>(), begin + i, count), count);
      });
    });
  };
  if (y.add)
    pass([](T* to, Vec<T> v, int count) { store_part(to, load_part(to, count) + v, count); });
  else
    pass([](T* to, Vec<T> v, int count) { store_part(to, v, count); });
}

// With u = sqrt(2/pi) (x + 0.044715 x^3), the tanh form x (1 + tanh u) / 2 is x sigmoid(2u): exact in the left tail.
template <class T>
Vec<T> twice_u(Vec<T> x) {
  return T(1.59576912160573071176) * x * (T(1) + T(0.044715) * x * x);
}
template <class T>
Vec<T> twice_u_slope(Vec<T> x) {
  return T(1.59576912160573071176) * (T(1) + T(3 * 0.044715) * x * x);
}

}  // namespace

void CpuKernels::add(const Into& y, const Tensor& a, const Tensor& b) {
  if (!y) return;
  visit_real(a.dtype(), [&]<class T>() { map<T>(y, {&a, &b}, [](Vec<T> u, Vec<T> v) { return u + v; }); });
}

void CpuKernels::copy(const Into& y, const Tensor& x) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() { map<T>(y, {&x}, [](Vec<T> v) { return v; }); });
}

void CpuKernels::scale(const Into& y, const Tensor& x, const Tensor& s) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() { map<T>(y, {&x}, [f = s.data<T>()[0]](Vec<T> v) { return f * v; }); });
}

void CpuKernels::lerp(const Into& y, const Tensor& a, const Tensor& b, float t) {
  if (!y) return;
  visit_real(a.dtype(), [&]<class T>() {
    map<T>(y, {&a, &b}, [p = T(t), q = 1 - T(t)](Vec<T> u, Vec<T> v) { return p * u + q * v; });
  });
}

void CpuKernels::multiply(const Into& y, const Tensor& x, float s) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() { map<T>(y, {&x}, [f = T(s)](Vec<T> v) { return f * v; }); });
}

void CpuKernels::scale_rows(const Into& y, const Tensor& x, const Tensor& s) {
  if (!y) return;
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t width = x.shape().last();
    parallel_for(x.shape().rows(), std::max<std::int64_t>(1, kChunk / width),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) {
                     const T* const from = x.data<T>() + r * width;
                     T* const to = y.to.data<T>() + r * width;
                     for_vectors<T>(width, [&, f = s.data<T>()[r]](std::int64_t i, int count) {
                       const Vec<T> v = f * load_part(from + i, count);
                       store_part(to + i, y.add ? load_part(to + i, count) + v : v, count);
                     });
                   }
                 });
  });
}

void CpuKernels::add_noise(const Tensor& y, const Tensor& x, float sigma, NoiseKey key) {
  visit_real(x.dtype(), [&]<class T>() {
    parallel_for(x.numel(), kChunk, [&, in = x.data<T>(), out = y.data<T>()](std::int64_t begin, std::int64_t end) {
      float drawn[kNormals];
      for (std::int64_t i = begin; i < end; i += kNormals) {
        normals(key, static_cast<std::uint64_t>(i), drawn);
        const std::int64_t n = std::min<std::int64_t>(kNormals, end - i);
        for (std::int64_t j = 0; j < n; ++j) out[i + j] = in[i + j] + T(sigma) * T(drawn[j]);
      }
    });
  });
}

void CpuKernels::truncated_normal(const Tensor& y, float std, NoiseKey key, Scalar<std::int64_t> first) {
  visit_real(y.dtype(), [&]<class T>() {
    const std::int64_t width = y.shape().last();
    parallel_for(y.shape().rows(), std::max<std::int64_t>(1, kChunk / width),
                 [&](std::int64_t begin, std::int64_t end) {
                   float drawn[kNormals];
                   for (std::int64_t r = begin; r < end; ++r) {
                     const auto row = static_cast<std::uint64_t>(first.get() + r);
                     for (std::int64_t c = 0; c < width; c += kNormals) {
                       normals(key, row << 32 | static_cast<std::uint64_t>(c), drawn);
                       const std::int64_t n = std::min<std::int64_t>(kNormals, width - c);
                       for (std::int64_t j = 0; j < n; ++j) {
                         const bool beyond = !(std::abs(drawn[j]) <= kNormalCut);
                         const float x =
                             beyond ? random_truncated_normal(key, row, static_cast<std::uint64_t>(c + j)) : drawn[j];
                         y.data<T>()[r * width + c + j] = T(std) * T(x);
                       }
                     }
                   }
                 });
  });
}

void CpuKernels::silu(const Tensor& y, const Tensor& x) {
  visit_real(x.dtype(), [&]<class T>() { map<T>(Into{y}, {&x}, [](Vec<T> v) { return v * sigmoid<T>(v).value; }); });
}

// d/dx x s(x) = s + x s (1 - s)
void CpuKernels::silu_backward(const Into& dx, const Tensor& dy, const Tensor& x) {
  if (!dx) return;
  visit_real(x.dtype(), [&]<class T>() {
    const auto slope = [](Vec<T> d, Vec<T> v) {
      const auto s = sigmoid<T>(v);
      return d * s.value * (T(1) + v * s.rest);
    };
    map<T>(dx, {&dy, &x}, slope);
  });
}

void CpuKernels::gelu(const Tensor& y, const Tensor& x, Gelu kind) {
  visit_real(x.dtype(), [&]<class T>() {
    if (kind == Gelu::erf)
      map<T>(Into{y}, {&x}, [](Vec<T> v) { return v * normal(v).integral; });
    else
      map<T>(Into{y}, {&x}, [](Vec<T> v) { return v * sigmoid<T>(twice_u<T>(v)).value; });
  });
}

// d/dx x Phi(x) = Phi + x phi;  d/dx x s(2u) = s + x s (1 - s) 2u'
void CpuKernels::gelu_backward(const Into& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  if (!dx) return;
  visit_real(x.dtype(), [&]<class T>() {
    const auto erf_slope = [](Vec<T> d, Vec<T> v) {
      const auto n = normal(v);
      return d * (n.integral + v * n.density);
    };
    const auto tanh_slope = [](Vec<T> d, Vec<T> v) {
      const auto s = sigmoid<T>(twice_u<T>(v));
      return d * s.value * (T(1) + v * s.rest * twice_u_slope<T>(v));
    };
    if (kind == Gelu::erf)
      map<T>(dx, {&dy, &x}, erf_slope);
    else
      map<T>(dx, {&dy, &x}, tanh_slope);
  });
}

void CpuKernels::put_columns(const Tensor& y, std::int64_t begin, const Tensor& x) {
  visit_real(x.dtype(), [&]<class T>() {
    const std::int64_t width = x.shape().last(), stride = y.shape().last();
    parallel_for(x.shape().rows(), std::max<std::int64_t>(1, kChunk / width),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t r = first; r < last; ++r)
                     std::copy_n(x.data<T>() + r * width, width, y.data<T>() + r * stride + begin);
                 });
  });
}

void CpuKernels::get_columns(const Into& x, const Tensor& y, std::int64_t begin) {
  if (!x) return;
  visit_real(y.dtype(), [&]<class T>() {
    const std::int64_t width = x.to.shape().last(), stride = y.shape().last();
    parallel_for(y.shape().rows(), std::max<std::int64_t>(1, kChunk / width),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t r = first; r < last; ++r) {
                     const T* from = y.data<T>() + r * stride + begin;
                     T* to = x.to.data<T>() + r * width;
                     for (std::int64_t c = 0; c < width; ++c) to[c] = x.add ? to[c] + from[c] : from[c];
                   }
                 });
  });
}

}  // namespace grt::cpu
