// The element types, and the one place where a run-time type becomes a compile-time one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace grt {

// f32 is computed with; f64 serves gradient checks and exact references; bf16 is a storage type; i32 holds token ids.
// packed_*: weights for inference alone, laid out for products with few rows as the device's Kernels::pack does it: f32
// or bf16 values, or int8 with one f32 scale for 32 columns of a row.
enum class DType : std::uint8_t { f32, f64, bf16, i32, packed_f32, packed_bf16, packed_int8 };

constexpr bool is_packed(DType t) {
  return t == DType::packed_f32 || t == DType::packed_bf16 || t == DType::packed_int8;
}

// Of an element; of a packed type without its scales.
constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
      return 8;
    case DType::bf16:
    case DType::packed_bf16:
      return 2;
    case DType::packed_int8:
      return 1;
    case DType::f32:
    case DType::i32:
    case DType::packed_f32:
      return 4;
  }
  return 0;
}

// Packed tensors are padded to whole panels of kPanelRows rows by whole runs of kPanelColumns columns.
inline constexpr std::size_t kPanelRows = 64, kPanelColumns = 32;

// Of a tensor whose last extent is `columns`, and `rows` the product of the others.
constexpr std::size_t bytes_of(DType t, std::size_t rows, std::size_t columns) {
  if (!is_packed(t)) return rows * columns * size_of(t);
  const std::size_t runs = (columns + kPanelColumns - 1) / kPanelColumns * ((rows + kPanelRows - 1) / kPanelRows);
  const std::size_t scale = t == DType::packed_int8 ? sizeof(float) : 0;
  return runs * kPanelRows * (kPanelColumns * size_of(t) + scale);
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::packed_f32:
      return "packed f32";
    case DType::packed_bf16:
      return "packed bf16";
    case DType::packed_int8:
      return "packed int8";
  }
  return "?";
}

// Calls f.operator()<float>() or f.operator()<double>(): how every CPU kernel picks its scalar type.
template <class F>
decltype(auto) visit_real(DType t, F&& f) {
  if (t == DType::f32) return f.template operator()<float>();
  check(t == DType::f64, "the CPU computes in f32 or f64, not {}", name_of(t));
  return f.template operator()<double>();
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}

}  // namespace grt
