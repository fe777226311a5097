// FNV-1a over words of 64 bits: a number that tells apart what may have become different by accident.
// Source: http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstdint>

namespace grt {

class Fnv {
 public:
  void add(std::uint64_t word) { hash_ = (hash_ ^ word) * 1099511628211u; }
  std::int64_t value() const { return static_cast<std::int64_t>(hash_); }

 private:
  std::uint64_t hash_ = 14695981039346656037u;
};

}  // namespace grt
