// The accuracy that ops/cpu/vector_math.h states, of its portable compilation; the other levels have the same
// polynomials.
#define GRT_ISA portable
#include "ops/cpu/vector_math.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/support.h"

namespace grt {
namespace {

constexpr int kPoints = 200'000;

// Calls f(x, v), v full of x, for points from `low` to `high`.
template <class F>
void for_points(double low, double high, F&& f) {
  for (int i = 0; i < kPoints; ++i) {
    const float x = static_cast<float>(low + (high - low) * i / (kPoints - 1));
    f(static_cast<double>(x), cpu::broadcast(x));
  }
}

// The largest |got - expected| / scale.
struct Worst {
  double error = 0;
  void add(double got, double expected, double scale) {
    const double e = std::abs(got - expected) / scale;
    error = e <= error ? error : e;  // a NaN stays
  }
};

// Quiet and signalling, of either sign, with few and many bits: 0x7fffffff is the one that NVIDIA's GPUs make.
constexpr std::uint32_t kNans[] = {0x7fffffff, 0xffffffff, 0x7fc00000, 0xffc00000, 0x7fc000ff, 0x7f800001, 0xffbfffff};

template <class T>
bool are_nan(std::initializer_list<cpu::Vec<T>> vectors) {
  return std::all_of(vectors.begin(), vectors.end(), [](cpu::Vec<T> v) {
    for (int i = 0; i < cpu::kLanes<T>; ++i)
      if (!std::isnan(v[i])) return false;
    return true;
  });
}

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST_SUITE("ops") {
  TEST_CASE("exp is within 2e-7, and ends where it says") {
    Worst worst;
    for_points(-87.3, 88.7, [&](double x, cpu::Vec<float> v) {
      const double expected = std::exp(x);
      worst.add(cpu::exp(v)[0], expected, expected);
    });
    CHECK(worst.error <= 2e-7);
    CHECK(cpu::exp(cpu::broadcast(-87.34f))[1] == 0);
    CHECK(std::isinf(cpu::exp(cpu::broadcast(88.73f))[1]));
    CHECK(cpu::exp(cpu::broadcast(0.0f))[0] == 1);
  }

  TEST_CASE("log is within 2e-7 from the smallest normal number to the largest") {
    Worst worst;
    for_points(-87.3, 88.7, [&](double power, cpu::Vec<float>) {
      const float x = static_cast<float>(std::exp(power));
      const double expected = std::log(static_cast<double>(x));
      if (std::abs(power) > 1e-3) worst.add(cpu::log(cpu::broadcast(x))[0], expected, std::abs(expected));
    });
    CHECK(worst.error <= 2e-7);
    CHECK(cpu::log(cpu::broadcast(1.0f))[0] == 0);
  }

  TEST_CASE("sin and cos are within 2e-7 of 1 over a turn") {
    Worst worst;
    for_points(0, 6.283185, [&](double x, cpu::Vec<float> v) {
      const cpu::SinCos both = cpu::sin_cos(v);
      worst.add(both.sin[0], std::sin(x), 1);
      worst.add(both.cos[0], std::cos(x), 1);
    });
    CHECK(worst.error <= 2e-7);
  }

  TEST_CASE("sigmoid and what it lacks of 1 are within 4e-7, however small") {
    Worst worst;
    for_points(-87, 87, [&](double x, cpu::Vec<float> v) {
      const auto pair = cpu::sigmoid<float>(v);
      worst.add(pair.value[0], exact_sigmoid(x), exact_sigmoid(x));
      worst.add(pair.rest[0], exact_sigmoid(-x), exact_sigmoid(-x));
    });
    CHECK(worst.error <= 4e-7);
  }

  TEST_CASE("the normal integral is within 4e-7 |1 + x^2 / 2| of itself, in the left tail too") {
    Worst worst;
    for_points(-12, 12, [&](double x, cpu::Vec<float> v) {
      const double expected = std::erfc(-x / std::sqrt(2.0)) / 2;
      worst.add(cpu::normal(v).integral[0], expected, (1 + x * x / 2) * expected);
    });
    CHECK(worst.error <= 4e-7);
  }

  TEST_CASE("a NaN stays one, whatever its bits") {
    for (const std::uint32_t bits : kNans) {
      CAPTURE(bits);
      const cpu::Vec<float> v = cpu::broadcast(std::bit_cast<float>(bits));
      const auto s = cpu::sigmoid<float>(v);
      const auto n = cpu::normal(v);
      const cpu::SinCos both = cpu::sin_cos(v);
      CHECK(are_nan<float>({cpu::exp(v), s.value, s.rest, n.density, n.integral, both.sin, both.cos}));
      const cpu::Vec<double> w = cpu::broadcast(static_cast<double>(std::bit_cast<float>(bits)));
      const auto t = cpu::sigmoid<double>(w);
      const auto m = cpu::normal(w);
      CHECK(are_nan<double>({cpu::exp(w), t.value, t.rest, m.density, m.integral}));
    }
  }
}

}  // namespace
}  // namespace grt
