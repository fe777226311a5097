// Packed weights as this backend lays them out (ops/kernels.h, pack): row after row, each in whole runs of
// kPanelColumns columns with zeros behind the last one; behind all rows, of int8, their scales, one for each run.
#pragma once

#include <bit>

#include "core/dtype.h"
#include "cuda/device.cuh"

namespace grt::cuda {

inline constexpr std::int64_t kRun = kPanelColumns;

template <DType type>
struct PackedElement;
template <>
struct PackedElement<DType::packed_f32> {
  using Type = float;
  __device__ static float value(float x) { return x; }
};
template <>
struct PackedElement<DType::packed_bf16> {
  using Type = std::uint16_t;
  __device__ static float value(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }
};
template <>
struct PackedElement<DType::packed_int8> {
  using Type = std::int8_t;
  __device__ static float value(std::int8_t x) { return static_cast<float>(x); }  // before the scale
};

// Plain f32 tensors are packed_f32 ones whose rows are `stride` = columns apart.
template <DType type>
struct PackedRows {
  static constexpr bool kScaled = type == DType::packed_int8;
  using Element = typename PackedElement<type>::Type;

  Element* values;
  float* scales;  // (rows, stride / kRun)
  std::int64_t stride;

  __device__ float* scale_of(std::int64_t row, std::int64_t column) const {
    return scales + row * (stride / kRun) + column / kRun;
  }
  __device__ float at(std::int64_t row, std::int64_t column) const {
    const float value = PackedElement<type>::value(values[row * stride + column]);
    return kScaled ? *scale_of(row, column) * value : value;
  }
};

template <DType type>
PackedRows<type> rows_of(const Tensor& w) {
  using Element = typename PackedElement<type>::Type;
  const std::int64_t stride = ceil_div(w.shape().last(), kRun) * kRun;
  auto* const values = w.data<Element>();
  return {values, reinterpret_cast<float*>(values + w.shape().rows() * stride), stride};
}

// Calls f.operator()<type>() for the type of a packed tensor.
template <class F>
void visit_packed(DType type, F&& f) {
  if (type == DType::packed_f32) return f.template operator()<DType::packed_f32>();
  if (type == DType::packed_bf16) return f.template operator()<DType::packed_bf16>();
  return f.template operator()<DType::packed_int8>();
}

}  // namespace grt::cuda
