// The emulator's own random choices: xorshift64*.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grt::emu {

class Random {
 public:
  explicit Random(std::uint64_t seed = 1) : state_(seed ? seed : 1) {}
  std::size_t below(std::size_t n) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::size_t>((state_ * 0x2545F4914F6CDD1Du >> 32) % n);
  }

 private:
  std::uint64_t state_;
};

}  // namespace grt::emu
