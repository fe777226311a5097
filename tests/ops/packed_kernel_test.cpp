// Packed weights: what rounding costs, that a product has the bits of the f32 product with the rounded values whatever
// the shapes, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/threads.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace grt {
namespace {

using std::int64_t;

constexpr DType kTypes[] = {DType::packed_f32, DType::packed_bf16, DType::packed_int8};

Tensor randn(Shape shape, std::uint32_t site) { return test::randn(shape, site, DType::f32); }

Tensor packed(const Tensor& w, DType type) {
  const Tensor p = Tensor::empty(w.shape(), type, w.device());
  w.device().kernels().pack(p, w);
  return p;
}

// The values of a packed tensor, looked up row by row.
Tensor values_of(const Tensor& p) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(p.dim(0)));
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor zeros = Tensor::zeros(p.shape(), DType::f32, p.device());
  return embedding(Tensor::from<std::int32_t>({1, p.dim(0)}, ids, p.device()), p, zeros).value().view(p.shape());
}

struct Product {
  int64_t m, n, k, begin, width;  // columns [begin, begin + k) of a weight (n, width)
  bool add, bias;
};

// Columns 2..n+1 of a wider y.
Tensor multiply(const Product& p, const Tensor& w, int64_t rows) {
  const Tensor x = randn({p.m, p.k}, 2), bias = randn({p.n}, 3), y = randn({rows, p.n + 5}, 4);
  x.device().kernels().matmul({y, p.add}, {2, p.n}, {x.rows(p.m - rows, rows)}, {w, true, {p.begin, p.k}},
                              p.bias ? bias : Tensor());
  return y;
}

void check_product(const Product& p) {
  for (const DType type : kTypes) {
    const Tensor w = packed(randn({p.n, p.width}, 1), type);
    INFO(name_of(type), ", m ", p.m, " n ", p.n, " k ", p.k, " from column ", p.begin);
    CHECK(test::same_bits(multiply(p, w, p.m), multiply(p, values_of(w), p.m)));
  }
}

TEST_SUITE("ops") {
  TEST_CASE("a product with a packed weight has the bits of the product with its values") {
    int form = 0;
    for (int64_t m : {1, 2, 3, 5, 8, 9, 17})
      for (int64_t n : {1, 7, 17, 64, 65, 130})
        for (int64_t k : {1, 7, 17, 32, 33, 100}) {
          check_product({m, n, k, 0, k, form % 2 == 0, form % 3 == 0});
          ++form;
        }
    for (int64_t m : {1, 4, 300}) {
      check_product({m, 70, 1600, 0, 1600, false, true});    // passes of 534 columns end within a word and a run
      check_product({m, 200, 1000, 37, 1037, true, true});   // a weight's right half that begins within them
      check_product({m, 200, 1000, 0, 1037, false, false});  // its left
    }
  }

  TEST_CASE("a product with a packed weight agrees with the f64 product of its values") {
    for (const DType type : kTypes) {
      const Tensor w = packed(randn({50, 700}, 1), type), x = randn({3, 700}, 2);
      const std::vector<double> y = test::values(linear(x, w).value()), a = test::values(x),
                                b = test::values(values_of(w));
      for (int64_t i = 0; i < 3 * 50; ++i) {
        const double exact =
            std::inner_product(a.begin() + i / 50 * 700, a.begin() + (i / 50 + 1) * 700, b.begin() + i % 50 * 700, 0.0);
        CHECK(std::abs(y[i] - exact) < 1e-5 * std::sqrt(700.0));
      }
    }
  }

  TEST_CASE("a row of a product with a packed weight has the same bits in any batch") {
    for (const DType type : kTypes) {
      const Product p{40, 130, 900, 0, 900, false, true};
      const Tensor w = packed(randn({p.n, p.width}, 1), type), all = multiply(p, w, p.m);
      for (int64_t rows : {1, 2, 3, 4, 7, 8, 9, 32}) {
        const Tensor y = multiply(p, w, rows);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 2; j < 2 + p.n; ++j)
            REQUIRE(y.data<float>()[i * (p.n + 5) + j] == all.data<float>()[(p.m - rows + i) * (p.n + 5) + j]);
      }
    }
  }

  TEST_CASE("the number of threads changes no bit of a product with a packed weight") {
    const int before = thread_count();
    for (const DType type : kTypes)
      for (int64_t m : {1, 5, 600}) {
        const Product p{m, 200, 500, 0, 500, true, true};
        std::vector<Tensor> results;
        for (int threads : {1, 2, 3}) {
          set_thread_count(threads);
          results.push_back(multiply(p, packed(randn({p.n, p.width}, 1), type), m));
        }
        CHECK(test::same_bits(results[0], results[1]));
        CHECK(test::same_bits(results[0], results[2]));
      }
    set_thread_count(before);
  }

  TEST_CASE("an empty sum with a packed weight is the bias, and nothing is added") {
    const Tensor w = packed(randn({70, 40}, 1), DType::packed_int8), bias = randn({70}, 3), y = randn({2, 70}, 4);
    const Tensor before = y.clone(), x = Tensor::empty({2, 0}, DType::f32, test::cpu());
    test::cpu().kernels().matmul({y, true}, {0, 70}, {x}, {w, true, {0, 0}}, {});
    CHECK(test::same_bits(y, before));
    test::cpu().kernels().matmul({y}, {0, 70}, {x}, {w, true, {0, 0}}, bias);
    CHECK(test::same_bits(y.rows(1, 1).view({70}), bias));
    CHECK(linear(Tensor::empty({0, 40}, DType::f32, test::cpu()), w).shape() == Shape{0, 70});
  }

  TEST_CASE("packed f32 keeps every bit and bf16 the nearest value") {
    const Tensor w = randn({67, 45}, 1);
    CHECK(test::same_bits(values_of(packed(w, DType::packed_f32)), w));

    // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, 1 + 3 x 2^-8 between that and 1 + 2^-6: ties go to even.
    const std::vector<float> ties = {1.00390625f, 1.01171875f, -1.00390625f, 1.00390637f, 0};
    const Tensor t = Tensor::from<float>({1, 5}, ties, test::cpu());
    CHECK(test::values(values_of(packed(t, DType::packed_bf16))) == std::vector<double>{1, 1.015625, -1, 1.0078125, 0});
    const std::vector<double> exact = test::values(w), kept = test::values(values_of(packed(w, DType::packed_bf16)));
    for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(kept[i] - exact[i]) <= std::abs(exact[i]) / 256);
  }

  TEST_CASE("packed int8 is off by at most half a step, which is a 127th of the run's largest value") {
    const int64_t rows = 67, columns = 75;
    const Tensor w = randn({rows, columns}, 1);
    std::fill_n(w.data<float>() + 3 * columns, 32, 0.0f);            // a run of zeros
    for (int64_t k = 0; k < 32; ++k) w.data<float>()[k] *= 1e-33f;   // too small for a scale
    for (int64_t k = 32; k < 64; ++k) w.data<float>()[k] *= 1e-20f;  // small, and kept
    const std::vector<double> kept = test::values(values_of(packed(w, DType::packed_int8))), exact = test::values(w);
    double worst = 0;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t first = 0; first < columns; first += 32) {
        const int64_t last = std::min(columns, first + 32);
        double most = 0;
        for (int64_t k = first; k < last; ++k) most = std::max(most, std::abs(exact[i * columns + k]));
        for (int64_t k = first; k < last; ++k) {
          const double error = std::abs(kept[i * columns + k] - exact[i * columns + k]);
          CHECK(error <= std::max(1e-30, most / 254 * (1 + 1e-5)));
          if (most > 0) worst = std::max(worst, error / most);
          if (std::abs(exact[i * columns + k]) == most)
            CHECK(error <= std::max(1e-30, 1e-6 * most));  // the largest is kept to rounding
        }
      }
    CHECK(worst > 0.9 / 254);  // and the bound is not far off
  }

  TEST_CASE("a packed weight takes the bytes that its type says") {
    CHECK(packed(randn({64, 64}, 1), DType::packed_f32).bytes() == 64 * 64 * 4);
    CHECK(packed(randn({64, 64}, 1), DType::packed_bf16).bytes() == 64 * 64 * 2);
    CHECK(packed(randn({64, 64}, 1), DType::packed_int8).bytes() == 64 * 64 + 64 * 2 * 4);
    CHECK(packed(randn({1, 1}, 1), DType::packed_bf16).bytes() == 64 * 32 * 2);
  }

  TEST_CASE("what a packed weight cannot do is refused by name") {
    const Tensor w = packed(randn({5, 4}, 1), DType::packed_int8);
    const Var x = Var::leaf(randn({2, 4}, 2)), wpe = Var::leaf(randn({3, 4}, 3));
    const Tensor ids = Tensor::from<std::int32_t>({1, 2}, std::vector<std::int32_t>{0, 1}, test::cpu());
    using test::contains, test::error_of;
    CHECK(contains(error_of([&] { w.range(0, {2, 4}); }), "range: packed int8 (5, 4) has no parts"));
    CHECK(contains(error_of([&] { w.view({4, 5}); }), "view: packed int8 (5, 4) has no other shape"));
    CHECK(contains(error_of([&] {
                     linear(test::randn({2, 4}, 1), w);
                   }),
                   "linear: w (5, 4) is packed int8, so the other"));
    Tape tape;
    const Record on(&tape);
    for (const std::string& error :
         {error_of([&] { linear(x, w); }), error_of([&] { linear_columns(x, w, 0); }),
          error_of([&] { embedding(ids, w, wpe); }), error_of([&] { cross_entropy(x, w, ids.view({2}), 5); }),
          error_of([&] { token_losses(x, w, ids.view({2}), 5); })})
      CHECK(contains(error, "w (5, 4) is packed int8, which is for inference: it has no gradient"));
  }
}

}  // namespace
}  // namespace grt
