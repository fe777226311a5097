// Elementwise kernels against std:: functions in double, over ranges that reach both tails.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

// f(x[i]...) for every i.
template <class F>
Values each(F f, const Tensor& x) {
  Values v = values(x);
  for (double& e : v) e = f(e);
  return v;
}
template <class F>
Values each(F f, const Tensor& a, const Tensor& b) {
  Values v = values(a);
  const Values w = values(b);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = f(v[i], w[i]);
  return v;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double integral(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); }
double twice_u(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }

double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }
double gelu_erf(double x) { return x * integral(x); }
double gelu_erf_slope(double x) { return integral(x) + x * density(x); }
double gelu_tanh(double x) { return x * sigmoid(twice_u(x)); }
double gelu_tanh_slope(double x) {
  const double du = 2 * std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
  return sigmoid(twice_u(x)) * (1 + x * sigmoid(-twice_u(x)) * du);
}

// Evenly spaced values from -reach to reach, not a whole number of vectors or chunks.
Tensor ramp(double reach, DType type) {
  Values v(40001);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = reach * (static_cast<double>(i) / 20000.0 - 1);
  return tensor({static_cast<std::int64_t>(v.size())}, v, type);
}

// The largest |got - expected| / |expected|.
double worst_relative(const Values& got, const Values& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (expected[i] != 0) worst = std::max(worst, std::abs(got[i] / expected[i] - 1));
  return worst;
}

// The kernel's values and slopes, against one of the oracle's modules.
void check_oracle(const std::string& name, const std::function<void(const Tensor&, const Tensor&)>& forward,
                  const std::function<void(const Into&, const Tensor&, const Tensor&)>& backward) {
  CAPTURE(name);
  const Json module = reference(name);
  for (DType type : kReals) {
    const Values at = numbers(module.at("x"));
    const Shape shape{static_cast<std::int64_t>(at.size())};
    const Tensor x = tensor(shape, at, type), dy = tensor(shape, Values(at.size(), 1.0), type);
    const Values y = written(shape, type, [&](const Tensor& to) { forward(to, x); });
    CHECK(relative_error(y, numbers(module.at("y"))) < 1e-6);
    const Values slope = written(shape, type, [&](const Tensor& to) { backward(Into{to}, dy, x); });
    CHECK(relative_error(slope, numbers(module.at("dydx"))) < 1e-6);
  }
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("add, copy, multiply, lerp and scale are what their formulas say") {
    Kernels& k = kernels();
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{17, 1, 61}, Shape{2, 16411}}) {
        const Tensor a = randn(shape, 1, type), b = randn(shape, 2, type), s = tensor({1}, {-1.75}, type);
        const auto sum = [](double x, double y) { return x + y; };
        check_into(each(sum, a, b), shape, type, [&](const Into& y) { k.add(y, a, b); });
        check_into(values(a), shape, type, [&](const Into& y) { k.copy(y, a); });
        const auto product = [](double x) { return 0.375 * x; };
        check_into(each(product, a), shape, type, [&](const Into& y) { k.multiply(y, a, 0.375f); });
        const auto mix = [](double x, double y) { return 0.25 * x + 0.75 * y; };
        check_into(each(mix, a, b), shape, type, [&](const Into& y) { k.lerp(y, a, b, 0.25f); });
        const auto scaled = [](double x) { return -1.75 * x; };
        check_into(each(scaled, a), shape, type, [&](const Into& y) { k.scale(y, a, s); });
      }
  }

  TEST_CASE("a sum may be written over one of its terms") {
    const Tensor a = randn({5, 77}, 3, DType::f32), b = randn({5, 77}, 4, DType::f32);
    const Values expected = each([](double x, double y) { return x + y; }, a, b);
    kernels().add(Into{a}, a, b);
    CHECK(relative_error(values(a), expected) < 1e-6);
  }

  TEST_CASE("silu and both kinds of gelu agree with the oracle") {
    Kernels& k = kernels();
    check_oracle(
        "silu", [&](const Tensor& y, const Tensor& x) { k.silu(y, x); },
        [&](const Into& dx, const Tensor& dy, const Tensor& x) { k.silu_backward(dx, dy, x); });
    for (Gelu kind : {Gelu::erf, Gelu::tanh})
      check_oracle(
          kind == Gelu::erf ? "gelu_erf" : "gelu_tanh", [&](const Tensor& y, const Tensor& x) { k.gelu(y, x, kind); },
          [&](const Into& dx, const Tensor& dy, const Tensor& x) { k.gelu_backward(dx, dy, x, kind); });
  }

  TEST_CASE("silu keeps its relative accuracy over all of exp's range") {
    const Tensor x = ramp(85, DType::f32);
    const Values y = written(x.shape(), DType::f32, [&](const Tensor& to) { kernels().silu(to, x); });
    CHECK(worst_relative(y, each(silu, x)) < 5e-7);
  }

  TEST_CASE("gelu keeps its relative accuracy in the left tail") {
    // At 9 the argument of exp is 40, whose rounding alone is 2e-6.
    for (double reach : {3.0, 9.0})
      for (Gelu kind : {Gelu::erf, Gelu::tanh}) {
        const Tensor x = ramp(reach, DType::f32);
        const Values y = written(x.shape(), DType::f32, [&](const Tensor& to) { kernels().gelu(to, x, kind); });
        const Values expected = kind == Gelu::erf ? each(gelu_erf, x) : each(gelu_tanh, x);
        CHECK(worst_relative(y, expected) < (reach < 4 ? 2e-6 : 2e-5));
      }
  }

  TEST_CASE("far out, activations and their slopes are their limits and not NaN") {
    const Tensor x = tensor({4}, {-1e4, -200, 200, 1e4}), one = tensor({4}, {1, 1, 1, 1});
    const Values limits = {0, 0, 200, 1e4}, slopes = {0, 0, 1, 1};
    Kernels& k = kernels();
    CHECK(written({4}, DType::f32, [&](const Tensor& y) { k.silu(y, x); }) == limits);
    CHECK(written({4}, DType::f32, [&](const Tensor& y) { k.silu_backward(Into{y}, one, x); }) == slopes);
    for (Gelu kind : {Gelu::erf, Gelu::tanh}) {
      CHECK(written({4}, DType::f32, [&](const Tensor& y) { k.gelu(y, x, kind); }) == limits);
      CHECK(written({4}, DType::f32, [&](const Tensor& y) { k.gelu_backward(Into{y}, one, x, kind); }) == slopes);
    }
  }

  TEST_CASE("an activation of NaN is NaN") {
    const Tensor x = tensor({2}, {std::nan(""), 1});
    for (Gelu kind : {Gelu::erf, Gelu::tanh})
      CHECK(std::isnan(written({2}, DType::f32, [&](const Tensor& y) { kernels().gelu(y, x, kind); })[0]));
    CHECK(std::isnan(written({2}, DType::f32, [&](const Tensor& y) { kernels().silu(y, x); })[0]));
  }

  TEST_CASE("the slopes of silu and gelu multiply what comes from above") {
    Kernels& k = kernels();
    for (DType type : kReals) {
      const Tensor x = ramp(6, type), dy = randn(x.shape(), 5, type);
      const auto expected = [&](auto slope) { return each([&](double d, double v) { return d * slope(v); }, dy, x); };
      check_into(expected(silu_slope), x.shape(), type, [&](const Into& dx) { k.silu_backward(dx, dy, x); });
      check_into(expected(gelu_erf_slope), x.shape(), type,
                 [&](const Into& dx) { k.gelu_backward(dx, dy, x, Gelu::erf); });
      check_into(expected(gelu_tanh_slope), x.shape(), type,
                 [&](const Into& dx) { k.gelu_backward(dx, dy, x, Gelu::tanh); });
    }
  }

  TEST_CASE("add_noise gives element i the i-th normal of its key") {
    const NoiseKey key{0x123456789abcdefull, 7, 3};
    for (DType type : kReals)
      for (std::int64_t n : {1, 63, 16384, 50001}) {
        const Tensor x = randn({n}, 6, type);
        Values expected = values(x);
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] += static_cast<double>(0.5f * random_normal(key, i));
        const Values y = written({n}, type, [&](const Tensor& to) { kernels().add_noise(to, x, 0.5f, key); });
        double worst = 0;
        for (std::size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(y[i] - expected[i]));
        CHECK(worst < 2e-6);
      }
  }

  TEST_CASE("columns are put beside others and taken back") {
    for (DType type : kReals) {
      const Tensor left = randn({7, 3}, 8, type), right = randn({7, 5}, 9, type);
      const Tensor both = Tensor::zeros({7, 9}, type, cpu());
      kernels().put_columns(both, 0, left);
      kernels().put_columns(both, 3, right);
      for (std::int64_t r = 0; r < 7; ++r) {
        const Values row = values(both.rows(r, 1)), l = values(left.rows(r, 1)), m = values(right.rows(r, 1));
        CHECK(std::equal(l.begin(), l.end(), row.begin()));
        CHECK(std::equal(m.begin(), m.end(), row.begin() + 3));
        CHECK(row[8] == 0);
      }
      check_into(values(right), {7, 5}, type, [&](const Into& x) { kernels().get_columns(x, both, 3); });
    }
  }

  TEST_CASE("scale_rows multiplies each row by its factor, in place too") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 1}, Shape{2, 3, 19}, Shape{40, 1030}}) {
        const Tensor x = randn(shape, 12, type), s = randn({shape.rows()}, 13, type);
        Values expected = values(x);
        const Values factors = values(s);
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] *= factors[i / static_cast<std::size_t>(shape.last())];
        check_into(expected, shape, type, [&](const Into& y) { kernels().scale_rows(y, x, s); });
        kernels().scale_rows(Into{x}, x, s);
        CHECK(relative_error(values(x), expected) < tolerance(type));
      }
  }

  TEST_CASE("elementwise results do not depend on the number of threads") {
    const Tensor x = randn({3, 33333}, 10, DType::f32), dy = randn({3, 33333}, 11, DType::f32);
    check_thread_independent([&] {
      std::vector<Tensor> y;
      for (int i = 0; i < 5; ++i) y.push_back(Tensor::like(x));
      kernels().gelu(y[0], x, Gelu::erf);
      kernels().gelu_backward(Into{y[1]}, dy, x, Gelu::tanh);
      kernels().add_noise(y[2], x, 0.1f, {1, 2, 3});
      kernels().silu_backward(Into{y[3]}, dy, x);
      kernels().scale_rows(Into{y[4]}, x, randn({3}, 14, DType::f32));
      return y;
    });
  }
}

}  // namespace grt
