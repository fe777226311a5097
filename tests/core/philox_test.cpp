// Random numbers: the generator's published answers, and the distributions made of it.
#include "core/philox.h"

#include <cmath>
#include <set>
#include <vector>

#include "tests/support.h"

namespace grt::test {
namespace {

using Block = std::array<std::uint32_t, 4>;

TEST_SUITE("core") {
  TEST_CASE("philox gives the known answers of Random123") {
    // kat_vectors of the Random123 library, philox4x32 with 10 rounds.
    CHECK(philox(0, {0, 0, 0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    const std::uint32_t ones = 0xffffffffu;
    CHECK(philox(~0ull, {ones, ones, ones, ones}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
          Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  }

  TEST_CASE("philox can be evaluated by the compiler") {
    constexpr Block block = philox(0, {0, 0, 0, 0});
    static_assert(block[0] == 0x6627e8d5);
    static_assert(random_below({1, 2, 3}, 4, 1) == 0);
    CHECK(block[1] == 0xe169c58d);
  }

  TEST_CASE("every part of a noise key, and both halves of the index, change the numbers") {
    const std::uint64_t far = std::uint64_t{1} << 32;
    const std::set<std::uint64_t> all = {
        random_u64({7, 0, 0}, 0),       random_u64({8, 0, 0}, 0), random_u64({7, 1, 0}, 0),  random_u64({7, 0, 1}, 0),
        random_u64({7 + far, 0, 0}, 0), random_u64({7, 0, 0}, 1), random_u64({7, 0, 0}, far)};
    CHECK(all.size() == 7);
  }

  TEST_CASE("random_below is the high word of the product") {
    const NoiseKey key{11, 12, 13};
    for (std::uint64_t n : {1ull, 2ull, 3ull, 50257ull, 0xffffffffull, 0x123456789abcdefull, ~0ull}) {
      for (std::uint64_t i = 0; i < 200; ++i) {
        __extension__ using Wide = unsigned __int128;
        const auto expected = static_cast<std::uint64_t>(Wide{random_u64(key, i)} * n >> 64);
        CHECK(random_below(key, i, n) == expected);
        CHECK(expected < n);
      }
    }
  }

  TEST_CASE("random_below and random_unit are uniform") {
    // Chi-square with 9 degrees of freedom: above 33.7 once in 10,000 keys. The key is fixed.
    const NoiseKey key{1337, 5, 9};
    constexpr int kDraws = 100000;
    std::vector<double> below(10), unit(10);
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      ++below[random_below(key, i, 10)];
      const double u = random_unit(key, i + (1ull << 40));
      REQUIRE(u >= 0.0);
      REQUIRE(u < 1.0);
      ++unit[static_cast<std::size_t>(u * 10)];
    }
    for (const auto& counts : {below, unit}) {
      double chi2 = 0;
      for (double c : counts) chi2 += (c - kDraws / 10.0) * (c - kDraws / 10.0) / (kDraws / 10.0);
      CHECK(chi2 < 33.7);
    }
  }

  TEST_CASE("random_normal has the moments of a normal distribution and independent neighbours") {
    const NoiseKey key{42, 0, 3};
    constexpr int kDraws = 400000;
    double sum = 0, square = 0, cube = 0, fourth = 0, neighbours = 0, previous = 0;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      const double x = random_normal(key, i);
      REQUIRE(std::isfinite(x));
      sum += x;
      square += x * x;
      cube += x * x * x;
      fourth += x * x * x * x;
      neighbours += x * previous;
      previous = x;
    }
    // Five standard errors of each estimate: its variance over n is 1, 2, 15, 96 and 1.
    const double error = 5 / std::sqrt(static_cast<double>(kDraws));
    CHECK(std::abs(sum / kDraws) < error);
    CHECK(std::abs(square / kDraws - 1) < error * std::sqrt(2.0));
    CHECK(std::abs(cube / kDraws) < error * std::sqrt(15.0));
    CHECK(std::abs(fourth / kDraws - 3) < error * std::sqrt(96.0));
    CHECK(std::abs(neighbours / kDraws) < error);
  }
}

}  // namespace
}  // namespace grt::test
