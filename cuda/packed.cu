// Packed weights: how they are made, and products with them. With few rows of x, as in decoding, the time is that of
// reading the weights: each is read once, 16 bytes at a time, for all rows of x. For more rows the weights are
// unpacked, where they are not f32 already, and cuBLASLt multiplies.
#include "cuda/packed.cuh"

#include <cuda_bf16.h>

#include <utility>

namespace grt::cuda {
namespace {

constexpr int kMostRows = 16;  // of x at once

// --- packing ---

template <DType type>
__device__ typename PackedElement<type>::Type packed_value(float x, float scale) {
  if constexpr (type == DType::packed_f32) return x;
  if constexpr (type == DType::packed_bf16) return std::bit_cast<std::uint16_t>(__float2bfloat16_rn(x));
  if constexpr (type == DType::packed_int8)
    return static_cast<std::int8_t>(scale == 0 ? 0 : fminf(fmaxf(rintf(x / scale), -127), 127));
}

// A warp for each run of a row.
template <DType type>
__global__ void pack_kernel(PackedRows<type> to, const float* w, std::int64_t rows, std::int64_t columns) {
  static_assert(kRun == kWarp);
  constexpr float kLeast = 1e-30f;  // as in ops/cpu/packed.cpp: no scale is a subnormal number
  const std::int64_t runs = to.stride / kRun, row = warp_row() / runs, c = warp_row() % runs * kRun + lane_index();
  if (row >= rows) return;
  const float x = c < columns ? w[row * columns + c] : 0;
  float scale = 1;
  if constexpr (PackedRows<type>::kScaled) {
    const float most = warp_max(fabsf(x));
    scale = most < kLeast ? 0 : most / 127;
    if (lane_index() == 0) *to.scale_of(row, c) = scale;
  }
  to.values[row * to.stride + c] = packed_value<type>(x, scale);
}

// to (rows, columns) = the columns of w from `first` on.
template <DType type>
__global__ void unpack_kernel(float* to, PackedRows<type> w, std::int64_t rows, std::int64_t columns,
                              std::int64_t first) {
  const std::int64_t i = global_index();
  if (i < rows * columns) to[i] = w.at(i / columns, first + i % columns);
}

// --- products with few rows ---

// y (m, n) = x (m, k) times columns [first, first + k) of w (n rows), transposed, + bias if given, + y if `add`.
template <DType type>
struct FewRows {
  PackedRows<type> w;
  std::int64_t first, n, k;
  const float* x;
  bool aligned;  // do four neighbours of x that belong to four of w begin at a multiple of 16 bytes?
  std::int64_t m;
  float* y;
  std::int64_t stride;  // of y's rows
  bool add;
  const float* bias;
};

// Elements [at, at + count) of a row of x (k); zero where it has none.
template <int count>
__device__ void load_row(float* to, const float* row, std::int64_t at, std::int64_t k, bool aligned) {
  if (aligned && 0 <= at && at + count <= k) {
    for (int i = 0; i < count; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(row + at + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
    for (int i = 0; i < count; ++i) to[i] = 0 <= at + i && at + i < k ? row[at + i] : 0;
  }
}

// Calls f(0), ..., f(n - 1) with constants, so that what they index stays in registers.
template <int n, class F>
__device__ void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (f(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, n>());
}

// M rows of x, of those beyond the last the last again, by R rows of w for each warp. What a lane adds up, and in which
// order, is the same for any M and R.
template <DType type, int M, int R>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp, 4) few_rows_kernel(FewRows<type> p) {
  using Rows = PackedRows<type>;
  constexpr int kEach = 16 / static_cast<int>(sizeof(typename Rows::Element));
  struct alignas(16) Vector {
    typename Rows::Element of[kEach];
  };
  const std::int64_t row = warp_row() * R;
  if (row >= p.n) return;
  float sums[M][R] = {};
  const std::int64_t begin = p.first / kEach * kEach, end = p.first + p.k;
  for (std::int64_t at = begin + lane_index() * kEach; at < end; at += kWarp * kEach) {
    Vector w[R];
    float scale[R];
    for (int r = 0; r < R; ++r) {
      const std::int64_t of = row + r < p.n ? row + r : p.n - 1;
      w[r] = *reinterpret_cast<const Vector*>(p.w.values + of * p.w.stride + at);
      scale[r] = Rows::kScaled ? *p.w.scale_of(of, at) : 1;
    }
    unrolled<M>([&](auto m) {
      float x[kEach];
      load_row<kEach>(x, p.x + (m < p.m ? m : p.m - 1) * p.k, at - p.first, p.k, p.aligned);
      for (int r = 0; r < R; ++r) {
        float sum = 0;
        for (int i = 0; i < kEach; ++i) sum += x[i] * PackedElement<type>::value(w[r].of[i]);
        sums[m][r] += scale[r] * sum;
      }
    });
  }
  unrolled<M>([&](auto m) {
    for (int r = 0; r < R; ++r) {
      const float sum = warp_sum(sums[m][r]);
      if (lane_index() == 0 && m < p.m && row + r < p.n)
        put(p.y + m * p.stride + row + r, p.add, sum + (p.bias ? p.bias[row + r] : 0));
    }
  });
}

// Several rows of w for each warp keep more loads under way, and read x once for all; int8 has no registers for four.
template <DType type, int M>
inline constexpr int kWeightRows = M >= 8 && type != DType::packed_int8 ? 4 : 2;

template <DType type, int M = 1>
void multiply_few(const FewRows<type>& p, cudaStream_t stream) {
  if constexpr (M < kMostRows)
    if (p.m > M) return multiply_few<type, 2 * M>(p, stream);
  constexpr int R = kWeightRows<type, M>;
  launch(stream, "a product with packed weights", few_rows_kernel<type, M, R>,
         blocks_of(ceil_div(p.n, R), kRowsPerBlock), kRowsPerBlock * kWarp, 0, p);
}

}  // namespace

void CudaKernels::pack(const Tensor& packed, const Tensor& w) {
  const std::int64_t rows = w.shape().rows(), columns = w.shape().last();
  visit_packed(packed.dtype(), [&]<DType type>() {
    const PackedRows<type> to = rows_of<type>(packed);
    launch(stream, "pack", pack_kernel<type>, blocks_of(rows * (to.stride / kRun), kRowsPerBlock),
           kRowsPerBlock * kWarp, 0, to, f32(w), rows, columns);
  });
}

void CudaKernels::packed_matmul(const Into& y, Columns columns, const Tensor& x, const Factor& w, const Tensor& bias) {
  const std::int64_t m = x.shape().rows(), n = w.tensor.shape().rows(), k = x.shape().last(), first = w.columns.begin;
  visit_packed(w.tensor.dtype(), [&]<DType type>() {
    const PackedRows<type> rows = rows_of<type>(w.tensor);
    if (0 < m && m <= kMostRows) {
      const bool aligned =
          reinterpret_cast<std::uintptr_t>(f32(x)) % sizeof(float4) == 0 && k % 4 == 0 && first % 4 == 0;
      multiply_few(FewRows<type>{rows, first, n, k, f32(x), aligned, m, f32(y.to) + columns.begin, y.to.shape().last(),
                                 y.add, f32(bias)},
                   stream);
      return;
    }
    Tensor unpacked;
    Matrix b{rows.values + first, DType::f32, n, k, rows.stride, false};
    if constexpr (type != DType::packed_f32) {
      unpacked = Tensor::empty({n, k}, DType::f32, x.device());
      launch(stream, "unpacking", unpack_kernel<type>, blocks_of(n * k, kBlock), kBlock, 0, f32(unpacked), rows, n, k,
             first);
      b.data = unpacked.raw();
      b.stride = k;
    }
    gemm(y, columns, {f32(x), DType::f32, m, k, k, false}, transpose(b), bias);
  });
}

}  // namespace grt::cuda
