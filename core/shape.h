// The extents of a dense row-major tensor of rank 0 to 4. A value type: no heap, cheap to copy.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/error.h"

namespace grt {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    check(dims.size() <= kMaxRank, "shape: rank {} is above {}", dims.size(), kMaxRank);
    for (std::int64_t d : dims) dims_[rank_++] = d;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[i < 0 ? from_end(i) : i]; }  // -1 is the last extent
  std::int64_t numel() const { return product(rank_); }
  std::int64_t last() const { return rank_ ? dims_[rank_ - 1] : 1; }
  std::int64_t rows() const { return rank_ ? product(rank_ - 1) : 1; }  // numel = rows * last

  Shape with_last(std::int64_t n) const {
    Shape s = *this;
    s.dims_[from_end(-1)] = n;
    return s;
  }
  bool operator==(const Shape&) const = default;

 private:
  int from_end(int i) const {
    check(i + rank_ >= 0, "shape: there is no extent {} where there are {}", i, rank_);
    return i + rank_;
  }
  std::int64_t product(int n) const {
    std::int64_t p = 1;
    for (int i = 0; i < n; ++i) p *= dims_[i];
    return p;
  }

  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace grt

// Prints as (8, 1024, 768).
template <>
struct fmt::formatter<grt::Shape> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const grt::Shape& s, fmt::format_context& ctx) const {
    auto out = fmt::format_to(ctx.out(), "(");
    for (int i = 0; i < s.rank(); ++i) out = fmt::format_to(out, "{}{}", i ? ", " : "", s[i]);
    return fmt::format_to(out, ")");
  }
};
