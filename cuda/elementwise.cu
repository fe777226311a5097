// Elementwise kernels: a thread for each element.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

// y[i] = f(x[i], ...), or += it. y may be one of the x.
template <class F, class... X>
__global__ void map_kernel(float* y, bool add, std::int64_t n, F f, const X*... x) {
  const std::int64_t i = global_index();
  if (i < n) put(y + i, add, f(x[i]...));
}

struct Map {
  cudaStream_t stream;
  const Into& y;
  template <class F, class... X>
  void operator()(F f, const X&... x) const {
    launch(stream, "an elementwise kernel", map_kernel<F, decltype(float(*f32(x)))...>, blocks_of(y.to.numel(), kBlock),
           kBlock, 0, f32(y.to), y.add, y.to.numel(), f, f32(x)...);
  }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Itself {
  __device__ float operator()(float x) const { return x; }
};
struct Lerp {
  float p, q;
  __device__ float operator()(float a, float b) const { return p * a + q * b; }
};
struct Times {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};
struct Silu {
  __device__ float operator()(float x) const { return x * sigmoid(x).value; }
};
// d/dx x s(x) = s + x s (1 - s)
struct SiluSlope {
  __device__ float operator()(float dy, float x) const {
    const Sigmoid s = sigmoid(x);
    return dy * s.value * (1 + x * s.rest);
  }
};

__device__ float normal_integral(float x) { return 0.5f * erfcf(-0.70710678f * x); }
__device__ float normal_density(float x) { return 0.39894228f * expf(-0.5f * x * x); }
struct GeluErf {
  __device__ float operator()(float x) const { return x * normal_integral(x); }
};
// d/dx x Phi(x) = Phi + x phi
struct GeluErfSlope {
  __device__ float operator()(float dy, float x) const { return dy * (normal_integral(x) + x * normal_density(x)); }
};

// With u = sqrt(2/pi) (x + 0.044715 x^3), the tanh form x (1 + tanh u) / 2 is x sigmoid(2u): exact in the left tail.
__device__ float twice_u(float x) { return 1.59576912f * x * (1 + 0.044715f * x * x); }
__device__ float twice_u_slope(float x) { return 1.59576912f * (1 + 3 * 0.044715f * x * x); }
struct GeluTanh {
  __device__ float operator()(float x) const { return x * sigmoid(twice_u(x)).value; }
};
// d/dx x s(2u) = s + x s (1 - s) 2u'
struct GeluTanhSlope {
  __device__ float operator()(float dy, float x) const {
    const Sigmoid s = sigmoid(twice_u(x));
    return dy * s.value * (1 + x * s.rest * twice_u_slope(x));
  }
};

__global__ void scale_kernel(float* y, bool add, std::int64_t n, const float* x, const float* s) {
  const std::int64_t i = global_index();
  if (i < n) put(y + i, add, s[0] * x[i]);
}

__global__ void scale_rows_kernel(float* y, bool add, std::int64_t n, const float* x, const float* s,
                                  std::int64_t width) {
  const std::int64_t i = global_index();
  if (i < n) put(y + i, add, s[i / width] * x[i]);
}

__global__ void put_columns_kernel(float* y, std::int64_t stride, std::int64_t begin, const float* x, std::int64_t n,
                                   std::int64_t width) {
  const std::int64_t i = global_index();
  if (i < n) y[i / width * stride + begin + i % width] = x[i];
}

__global__ void get_columns_kernel(float* x, bool add, std::int64_t n, std::int64_t width, const float* y,
                                   std::int64_t stride, std::int64_t begin) {
  const std::int64_t i = global_index();
  if (i < n) put(x + i, add, y[i / width * stride + begin + i % width]);
}

}  // namespace

void CudaKernels::add(const Into& y, const Tensor& a, const Tensor& b) {
  if (y) Map{stream, y}(Sum{}, a, b);
}

void CudaKernels::copy(const Into& y, const Tensor& x) {
  if (y) Map{stream, y}(Itself{}, x);
}

void CudaKernels::scale(const Into& y, const Tensor& x, const Tensor& s) {
  if (!y) return;
  launch(stream, "scale", scale_kernel, blocks_of(x.numel(), kBlock), kBlock, 0, f32(y.to), y.add, x.numel(), f32(x),
         f32(s));
}

void CudaKernels::lerp(const Into& y, const Tensor& a, const Tensor& b, float t) {
  if (y) Map{stream, y}(Lerp{t, 1 - t}, a, b);
}

void CudaKernels::multiply(const Into& y, const Tensor& x, float s) {
  if (y) Map{stream, y}(Times{s}, x);
}

void CudaKernels::scale_rows(const Into& y, const Tensor& x, const Tensor& s) {
  if (!y) return;
  launch(stream, "scale_rows", scale_rows_kernel, blocks_of(x.numel(), kBlock), kBlock, 0, f32(y.to), y.add, x.numel(),
         f32(x), f32(s), x.shape().last());
}

void CudaKernels::silu(const Tensor& y, const Tensor& x) { Map{stream, {y}}(Silu{}, x); }

void CudaKernels::silu_backward(const Into& dx, const Tensor& dy, const Tensor& x) {
  if (dx) Map{stream, dx}(SiluSlope{}, dy, x);
}

void CudaKernels::gelu(const Tensor& y, const Tensor& x, Gelu kind) {
  if (kind == Gelu::erf)
    Map{stream, {y}}(GeluErf{}, x);
  else
    Map{stream, {y}}(GeluTanh{}, x);
}

void CudaKernels::gelu_backward(const Into& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  if (!dx) return;
  if (kind == Gelu::erf)
    Map{stream, dx}(GeluErfSlope{}, dy, x);
  else
    Map{stream, dx}(GeluTanhSlope{}, dy, x);
}

void CudaKernels::put_columns(const Tensor& y, std::int64_t begin, const Tensor& x) {
  launch(stream, "put_columns", put_columns_kernel, blocks_of(x.numel(), kBlock), kBlock, 0, f32(y), y.shape().last(),
         begin, f32(x), x.numel(), x.shape().last());
}

void CudaKernels::get_columns(const Into& x, const Tensor& y, std::int64_t begin) {
  if (!x) return;
  launch(stream, "get_columns", get_columns_kernel, blocks_of(x.to.numel(), kBlock), kBlock, 0, f32(x.to), x.add,
         x.to.numel(), x.to.shape().last(), f32(y), y.shape().last(), begin);
}

}  // namespace grt::cuda
