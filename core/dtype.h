// The element types, and the one place where a run-time type becomes a compile-time one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace grt {

// f32 is computed with; f64 serves gradient checks and exact references; bf16 is a storage type; i32 holds token ids.
enum class DType : std::uint8_t { f32, f64, bf16, i32 };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
      return 8;
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
  }
  return 0;
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
