// The matrix products of every level that this machine runs, against Eigen in f64: transposes, accumulation, bias,
// column ranges, odd sizes, empty sums, bf16, and the promises that neither the number of threads nor the number of
// rows changes a bit.
#include <Eigen/Core>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/host/level.h"
#include "tests/support.h"

namespace grt {
namespace {

using std::int64_t;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Size {
  int64_t m, n, k;
};

struct Form {
  bool a_transposed, b_transposed, add, bias;
};

// Each of the sixteen forms, numbered.
Form form_of(int i) { return {(i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0}; }
// All; under sanitizers four that have every pair of transposes, added to or not, with bias or not.
constexpr int kFormsApart = test::kSanitized ? 5 : 1;

// Calls f(kernels) for every level that runs here.
template <class F>
void for_levels(DType products, F&& f) {
  for (const cpu::Isa isa : cpu::built()) {
    if (!cpu::runs_here(isa)) continue;
    INFO("level ", cpu::name_of(isa), ", products in ", name_of(products));
    f(*cpu::level_of(isa).kernels(products));
  }
}

// A matrix inside a wider one, `left` columns in; the rest is NaN, so that a stray read shows.
template <class T>
struct Padded {
  int64_t rows, columns, left;
  Tensor storage;

  Padded(int64_t r, int64_t c, unsigned site, int64_t pad = 3)
      : rows(r), columns(c), left(pad), storage(Tensor::empty({r, c + 2 * pad}, dtype_of<T>(), test::cpu())) {
    static const std::vector<double> random = test::values(test::randn({9973}, 1));
    fill_nan();
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) at(i, j) = static_cast<T>(random[(i * c + j + site * 1999) % random.size()]);
  }
  void fill_nan() { std::fill_n(storage.data<T>(), storage.numel(), std::numeric_limits<T>::quiet_NaN()); }
  T& at(int64_t i, int64_t j) const { return storage.data<T>()[i * storage.dim(1) + left + j]; }
  Columns range() const { return {left, columns}; }
  Matrix matrix() const {
    Matrix m(rows, columns);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) m(i, j) = at(i, j);
    return m;
  }
  bool outside_untouched() const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = -left; j < columns + left; ++j)
        if ((j < 0 || j >= columns) && !std::isnan(at(i, j))) return false;
    return true;
  }
};

template <class T>
struct Product {
  Padded<T> a, b, c, bias;
  Form form;
  Size size;

  Product(Size s, Form f)
      : a(f.a_transposed ? s.k : s.m, f.a_transposed ? s.m : s.k, 1),
        b(f.b_transposed ? s.n : s.k, f.b_transposed ? s.k : s.n, 2),
        c(s.m, s.n, 3),
        bias(1, s.n, 4, 0),
        form(f),
        size(s) {
    if (!f.add) c.fill_nan();
  }
  Matrix left() const { return form.a_transposed ? Matrix(a.matrix().transpose()) : a.matrix(); }
  Matrix right() const { return form.b_transposed ? Matrix(b.matrix().transpose()) : b.matrix(); }
  // What the product of these factors must come to.
  Matrix expected(const Matrix& factor, const Matrix& other) const {
    Matrix y = factor * other;
    if (form.add) y += c.matrix();
    if (form.bias) y.rowwise() += bias.matrix().row(0);
    return y;
  }
  void run(Kernels& kernels) const {
    kernels.matmul({c.storage, form.add}, c.range(), {a.storage, form.a_transposed, a.range()},
                   {b.storage, form.b_transposed, b.range()}, form.bias ? bias.storage.view({size.n}) : Tensor());
  }
};

// Largest error in units of what rounding k products and a few sums of standard normal values may cost; NaN if any is.
template <class T>
double relative_error(const Matrix& y, const Matrix& expected, int64_t k) {
  if (y.size() == 0) return 0;
  const double unit = std::numeric_limits<T>::epsilon() * static_cast<double>(8 + k);
  const Matrix difference = y - expected;
  return difference.hasNaN() ? difference.sum() : difference.cwiseAbs().maxCoeff() / unit;
}

template <class T>
void check_form(Kernels& kernels, Size size, int form) {
  const Product<T> p(size, form_of(form));
  const Matrix expected = p.expected(p.left(), p.right());
  p.run(kernels);
  INFO("m ", size.m, " n ", size.n, " k ", size.k, " form ", form);
  CHECK(relative_error<T>(p.c.matrix(), expected, size.k) < 8);
  CHECK(p.c.outside_untouched());
}

template <class T>
void check_all_forms(Kernels& kernels, Size size) {
  for (int form = 0; form < 16; ++form) check_form<T>(kernels, size, form);
}

// The nearest value of 8 significant bits, ties to even.
double bf16(double x) {
  if (x == 0) return x;
  const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
  return std::nearbyint(x / unit) * unit;
}

// A product in bf16 has the value that the rounded factors have, and so the error that their rounding may cause.
void check_bf16(Kernels& kernels, Size size, int form) {
  const Product<float> p(size, form_of(form));
  const Matrix left = p.left(), right = p.right();
  const Matrix rounded = p.expected(left.unaryExpr(&bf16), right.unaryExpr(&bf16)), exact = p.expected(left, right);
  p.run(kernels);
  const Matrix y = p.c.matrix();
  INFO("m ", size.m, " n ", size.n, " k ", size.k, " form ", form);
  CHECK(relative_error<float>(y, rounded, size.k) < 8);
  CHECK(p.c.outside_untouched());
  if (y.size() == 0) return;
  constexpr double kUnit = 0x1p-8;  // relative rounding error of one factor
  const Matrix bound = (2 * kUnit + kUnit * kUnit) * (left.cwiseAbs() * right.cwiseAbs());
  CHECK(((y - exact).cwiseAbs() - bound).maxCoeff() < 1e-5 * static_cast<double>(1 + size.k));
}

template <class T>
void check_threads(Kernels& kernels, Size size, int form) {
  const int before = thread_count();
  std::vector<Tensor> results;
  for (int threads : {1, 2, 3}) {
    set_thread_count(threads);
    const Product<T> p(size, form_of(form));
    p.run(kernels);
    results.push_back(p.c.storage);
  }
  set_thread_count(before);
  CHECK(test::same_bits(results[1], results[0]));
  CHECK(test::same_bits(results[2], results[0]));
}

// Rows first..first+m-1 of a product computed alone have the bits they have in the whole product.
template <class T>
void check_rows(Kernels& kernels, const Product<T>& whole, int64_t first, int64_t m) {
  const bool across = whole.form.a_transposed;
  const Padded<T> c(m, whole.size.n, 3);
  const Padded<T>& a = whole.a;
  const Tensor rows = across ? a.storage : a.storage.rows(first, m);
  const Factor left{rows, across, across ? Columns{a.left + first, m} : a.range()};
  kernels.matmul({c.storage}, c.range(), left, {whole.b.storage, whole.form.b_transposed, whole.b.range()},
                 whole.bias.storage.view({whole.size.n}));
  for (int64_t i = 0; i < m; ++i) {
    INFO("row ", first + i, " of ", m, " rows, n ", whole.size.n, " k ", whole.size.k, " a transposed ", across,
         " b transposed ", whole.form.b_transposed);
    CHECK(std::memcmp(&c.at(i, 0), &whole.c.at(first + i, 0), whole.size.n * sizeof(T)) == 0);
  }
}

template <class T>
void check_any_rows(DType products) {
  for_levels(products, [](Kernels& kernels) {
    for (int form : {8, 9, 10, 11})
      for (Size size : {Size{75, 193, 900}, Size{75, 97, 24}, Size{75, 15, 7}}) {
        const Product<T> whole(size, form_of(form));
        whole.run(kernels);
        for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31}) check_rows(kernels, whole, m, m);
      }
  });
}

TEST_SUITE("ops") {
  TEST_CASE_TEMPLATE("gemm agrees with Eigen in every form at odd sizes", T, float, double) {
    constexpr std::array<int64_t, 9> kFew = {1, 2, 5, 8, 13, 24, 33, 70, 97},
                                     kEdges = {0, 1, 7, 17, 18, 31, 49, 64, 65};
    for_levels(DType::f32, [&](Kernels& kernels) {
      for (std::size_t i = 0; i < kFew.size(); ++i)
        for (std::size_t j = 0; j < kFew.size(); ++j)
          check_all_forms<T>(kernels, {kFew[i], kFew[j], kFew[(3 * i + 5 * j) % 9]});
      for (std::size_t i = 0; i < 9 * 9 * 9; ++i)
        check_form<T>(kernels, {kEdges[i % 9], kEdges[i / 9 % 9], kEdges[i / 81]}, static_cast<int>(7 * i % 16));
      for (int64_t size = 1; size <= 70; ++size) check_all_forms<T>(kernels, {size, 71 - size, (size * 29) % 71});
    });
  }

  TEST_CASE_TEMPLATE("gemm agrees with Eigen over several passes and tasks", T, float, double) {
    for_levels(DType::f32, [](Kernels& kernels) {
      check_all_forms<T>(kernels, {257, 257, 257});
      check_all_forms<T>(kernels, {97, 130, 1600});
      check_all_forms<T>(kernels, {1, 300, 1600});
      check_all_forms<T>(kernels, {7, 300, 1600});
    });
  }

  TEST_CASE("a product wider than one block of packed columns agrees with Eigen") {
    for_levels(DType::f32, [](Kernels& kernels) { check_form<float>(kernels, {20, 9001, 700}, 14); });
    for_levels(DType::bf16, [](Kernels& kernels) { check_bf16(kernels, {20, 9001, 1400}, 14); });
  }

  TEST_CASE_TEMPLATE("an empty sum is zero or the bias, and nothing is added to C", T, float, double) {
    for_levels(DType::f32, [](Kernels& kernels) {
      check_all_forms<T>(kernels, {5, 9, 0});
      check_all_forms<T>(kernels, {1, 40, 0});
    });
  }

  TEST_CASE("a product in bf16 is that of rounded factors, within the bound of their rounding") {
    constexpr std::array<int64_t, 8> kEdges = {0, 1, 7, 17, 18, 31, 49, 64};
    for_levels(DType::bf16, [&](Kernels& kernels) {
      for (std::size_t i = 0; i < 8 * 8 * 8; ++i)
        check_bf16(kernels, {kEdges[i % 8], kEdges[i / 8 % 8], kEdges[i / 64]}, static_cast<int>(7 * i % 16));
      for (int form = 0; form < 16; form += kFormsApart) {
        check_bf16(kernels, {97, 130, 3333}, form);
        check_bf16(kernels, {3, 300, 3333}, form);
      }
    });
  }

  TEST_CASE("bf16 is emulated to the bit") {
    for (Size size : {Size{70, 97, 331}, Size{9, 33, 64}, Size{200, 50, 17}})
      for (int form = 0; form < 16; ++form) {
        std::vector<Tensor> results;
        for_levels(DType::bf16, [&](Kernels& kernels) {
          const Product<float> p(size, form_of(form));
          p.run(kernels);
          results.push_back(p.c.storage);
        });
        for (const Tensor& result : results) CHECK(test::same_bits(result, results[0]));
      }
  }

  TEST_CASE("infinities and NaNs stay what they are in bf16") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for_levels(DType::bf16, [&](Kernels& kernels) {
      for (int64_t rows : {3, 40}) {
        const Product<float> p({rows, 20, 33}, form_of(0));
        p.a.at(0, 5) = kInfinity;
        p.a.at(1, 32) = std::bit_cast<float>(0x7fffffffu);  // rounding its bits up would give -0
        p.run(kernels);
        CHECK(std::isinf(p.c.at(0, 0)));
        CHECK(std::isnan(p.c.at(1, 19)));
        CHECK(std::isfinite(p.c.at(2, 0)));
      }
    });
  }

  TEST_CASE("f64 tensors are multiplied in f64 whatever the products of f32 tensors are") {
    for_levels(DType::bf16, [](Kernels& kernels) { check_all_forms<double>(kernels, {33, 20, 50}); });
  }

  TEST_CASE_TEMPLATE("a product inside a chunk of another loop has the same bits", T, float, double) {
    for (DType products : {DType::f32, DType::bf16})
      for_levels(products, [](Kernels& kernels) {
        for (Size size : {Size{64, 96, 64}, Size{128, 64, 1024}, Size{33, 97, 24}, Size{1, 97, 800}, Size{6, 50, 31}})
          for (int form = 0; form < 8; ++form) {
            const Product<T> p(size, form_of(form)), q(size, form_of(form)), r(size, form_of(form));
            p.run(kernels);
            parallel_for(2, 1, [&](int64_t i, int64_t) { (i == 0 ? q : r).run(kernels); });
            CHECK(test::same_bits(p.c.storage, q.c.storage));
            CHECK(test::same_bits(p.c.storage, r.c.storage));
          }
      });
  }

  TEST_CASE_TEMPLATE("the number of threads changes no bit of a product", T, float, double) {
    for (DType products : {DType::f32, DType::bf16})
      for_levels(products, [](Kernels& kernels) {
        for (int form = 0; form < 16; form += kFormsApart) {
          check_threads<T>(kernels, {131, 193, 900}, form);
          check_threads<T>(kernels, {1, 500, 900}, form);
          check_threads<T>(kernels, {5, 500, 900}, form);
        }
      });
  }

  TEST_CASE("a row of a product has the same bits whatever the number of rows") {
    check_any_rows<float>(DType::f32);
    check_any_rows<float>(DType::bf16);
    check_any_rows<double>(DType::f32);
  }

  TEST_CASE("products with held weights have the bits of others, and later values are seen after the hold") {
    constexpr int kUses = test::kSanitized ? 2 : 3;
    const auto check_held = []<class T>(Kernels& kernels, Size size, int form) {
      Product<T> p(size, form_of(form)), other(size, form_of(form));
      const Tensor& weights = p.b.storage;
      for (int hold = 0; hold < kUses; ++hold) {
        kernels.multiply({weights}, weights, 2);
        other.b.storage = weights.clone();
        other.run(kernels);
        kernels.hold(weights);
        for (int use = 0; use < kUses; ++use) {  // one packs, others find what was packed
          p.c.fill_nan();
          p.run(kernels);
          CHECK(test::same_bits(p.c.storage, other.c.storage));
        }
        kernels.let_go();
      }
    };
    for (DType products : {DType::f32, DType::bf16})
      for_levels(products, [&](Kernels& kernels) {
        for (Size size : {Size{60, 97, 331}, test::kSanitized ? Size{17, 300, 1700} : Size{40, 300, 1700},
                          test::kSanitized ? Size{9, 5001, 700} : Size{20, 9001, 700}, Size{3, 40, 50}})
          for (int form : {0, 2}) {
            check_held.operator()<float>(kernels, size, form);
            check_held.operator()<double>(kernels, size, form);
          }
      });
  }

  TEST_CASE("the panels of a weight that one pass uses twice serve the next passes, to the end of the outermost hold") {
    const auto check_passes = [](Kernels& kernels, int form, int uses) {
      Product<float> p({60, 7, 331}, form_of(form));
      const Tensor& weights = p.b.storage;
      const auto result = [&] {
        p.c.fill_nan();
        p.run(kernels);
        return p.c.storage.clone();
      };
      const auto pass = [&] {
        kernels.hold(weights);
        const Tensor first = result();
        for (int use = 1; use < uses; ++use) CHECK(test::same_bits(result(), first));
        kernels.let_go();
        return first;
      };
      const Tensor before = result();
      kernels.hold(weights);
      CHECK(test::same_bits(pass(), before));
      kernels.multiply({weights}, weights, 2);  // which a hold forbids: it shows what is read
      const bool kept = uses > 1;
      CHECK(test::same_bits(pass(), before) == kept);
      CHECK(test::same_bits(pass(), before) == kept);
      kernels.let_go();
      const Tensor after = result();
      CHECK_FALSE(test::same_bits(after, before));
      CHECK(test::same_bits(pass(), after));
    };
    for (DType products : {DType::f32, DType::bf16})
      for_levels(products, [&](Kernels& kernels) {
        for (int form : {0, 2})
          for (int uses : {1, 2, 3}) check_passes(kernels, form, uses);
      });
  }

  TEST_CASE("matmul multiplies a transposed column range, the last columns when no count is given") {
    const Tensor a = test::randn({15, 20}, 1), b = test::randn({15, 8}, 2), y = test::randn({16, 6}, 3);
    const auto map = [](const Tensor& t) {
      return Eigen::Map<const Matrix>(t.data<double>(), t.shape().rows(), t.shape().last());
    };
    const Matrix expected = map(a).middleCols(4, 16).transpose() * map(b).middleCols(1, 6);
    for_levels(DType::f32, [&](Kernels& kernels) {
      kernels.matmul({y, false}, {}, {a, true, {4}}, {b, false, {1, 6}}, {});
      CHECK((map(y) - expected).cwiseAbs().maxCoeff() < 1e-13);
    });
  }

  TEST_CASE("matmul does nothing when its result is not wanted") {
    const Tensor a = test::randn({3, 3}, 1);
    for_levels(DType::f32, [&](Kernels& kernels) { CHECK_NOTHROW(kernels.matmul({}, {}, {a}, {a}, {})); });
  }
}

}  // namespace
}  // namespace grt
