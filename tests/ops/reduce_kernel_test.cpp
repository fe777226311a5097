// Reductions against plain sums in double.
#include "tests/ops/kernel_checks.h"
#include "train/host.h"

namespace grt {

using namespace test;

TEST_SUITE("ops") {
  TEST_CASE("sum_rows adds up the rows") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{2, 37, 130}, Shape{2051, 9}, Shape{40, 2100}}) {
        const Tensor x = randn(shape, 1, type);
        const Values in = values(x);
        Values expected(static_cast<std::size_t>(shape.last()));
        for (std::size_t i = 0; i < in.size(); ++i) expected[i % expected.size()] += in[i];
        check_into(expected, {shape.last()}, type, [&](const Into& y) { kernels().sum_rows(y, x); });
      }
  }

  TEST_CASE("sum and sum_squares add in double") {
    for (DType type : kReals)
      for (std::int64_t n : {1, 7, 16384, 100003}) {
        const Tensor x = randn({n}, 2, type);
        double sum = 0, squares = 0;
        for (double v : values(x)) {
          sum += v;
          squares += v * v;
        }
        check_into({0.25 * sum}, {1}, type, [&](const Into& y) { kernels().sum(y, x, 0.25); });
        CHECK(sum_squares(x) == doctest::Approx(squares).epsilon(1e-12));
      }
    // In float, 1 would vanish beside 2^26.
    Values v(1001, 1.0);
    v[0] = 0x1p26;
    v[1000] = -0x1p26;
    CHECK(written({1}, DType::f32, [&](const Tensor& y) { kernels().sum(Into{y}, tensor({1001}, v), 1); })[0] == 999);
  }

  TEST_CASE("count_not_finite counts NaNs and infinities and nothing else") {
    for (DType type : kReals) {
      Values v(40000, type == DType::f32 ? 3.4e38 : 1.7e308);
      CHECK(kernels().count_not_finite(tensor({40000}, v, type)) == 0);
      v[0] = std::nan("");
      v[16385] = std::numeric_limits<double>::infinity();
      v[39999] = -v[16385];
      CHECK(kernels().count_not_finite(tensor({40000}, v, type)) == 3);
    }
  }

  TEST_CASE("reductions do not depend on the number of threads") {
    const Tensor x = randn({777, 131}, 3, DType::f32);
    check_thread_independent([&] {
      const Tensor rows = Tensor::empty({131}, DType::f32, cpu()), all = Tensor::empty({1}, DType::f32, cpu());
      kernels().sum_rows(Into{rows}, x);
      kernels().sum(Into{all}, x, 1);
      return std::vector{rows, all, tensor({1}, {sum_squares(x)}, DType::f64)};
    });
  }
}

}  // namespace grt
