// The matrix products against Eigen in f64: transposes, accumulation, bias, column ranges, odd sizes, empty sums, and
// the promises that neither the number of threads nor the number of rows changes a bit.
#include "ops/cpu/gemm.h"

#include <Eigen/Core>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "tests/support.h"

namespace grt {
namespace {

using cpu::Strided;
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

// A matrix inside a wider one, `left` columns in; the rest is NaN, so that a stray read shows.
template <class T>
struct Padded {
  int64_t rows, columns, stride, left;
  std::vector<T> storage;

  Padded(int64_t r, int64_t c, unsigned site, int64_t pad = 3)
      : rows(r), columns(c), stride(c + 2 * pad), left(pad), storage(r * stride, std::numeric_limits<T>::quiet_NaN()) {
    static const std::vector<double> random = test::values(test::randn({9973}, 1));
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j)
        data()[i * stride + j] = static_cast<T>(random[(i * c + j + site * 1999) % random.size()]);
  }
  T* data() { return storage.data() + left; }
  const T* data() const { return storage.data() + left; }
  Matrix matrix() const {
    Matrix m(rows, columns);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) m(i, j) = data()[i * stride + j];
    return m;
  }
  Strided<T> view(bool transposed) const {
    return transposed ? Strided<T>{data(), 1, stride} : Strided<T>{data(), stride, 1};
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
        bias(1, s.n, 4),
        form(f),
        size(s) {
    if (!f.add) c.storage.assign(c.storage.size(), std::numeric_limits<T>::quiet_NaN());
  }
  Matrix expected() const {
    Matrix left = a.matrix(), right = b.matrix();
    if (form.a_transposed) left = left.transpose().eval();
    if (form.b_transposed) right = right.transpose().eval();
    Matrix y = left * right;
    if (form.add) y += c.matrix();
    if (form.bias) y.rowwise() += bias.matrix().row(0);
    return y;
  }
  void run() {
    cpu::gemm<T>(size.m, size.n, size.k, a.view(form.a_transposed), b.view(form.b_transposed), c.data(), c.stride,
                 form.add, form.bias ? bias.data() : nullptr);
  }
  void run_serial() {
    cpu::gemm_serial<T>(size.m, size.n, size.k, a.view(form.a_transposed), b.view(form.b_transposed), c.data(),
                        c.stride, form.add);
  }
};

// Largest error in units of what rounding k products and a few sums of standard normal values may cost; NaN if any is.
template <class T>
double relative_error(const Matrix& y, const Matrix& expected, int64_t k) {
  const double unit = std::numeric_limits<T>::epsilon() * static_cast<double>(8 + k);
  const Matrix difference = y - expected;
  return difference.hasNaN() ? difference.sum() : difference.cwiseAbs().maxCoeff() / unit;
}

template <class T>
bool outside_untouched(const Padded<T>& c) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.stride; ++j)
      if ((j < c.left || j >= c.left + c.columns) && !std::isnan(c.storage[i * c.stride + j])) return false;
  return true;
}

template <class T>
void check_all_forms(Size size) {
  for (int i = 0; i < 16; ++i) {
    Product<T> p(size, form_of(i));
    const Matrix expected = p.expected();
    p.run();
    INFO("m ", size.m, " n ", size.n, " k ", size.k, " form ", i);
    CHECK(relative_error<T>(p.c.matrix(), expected, size.k) < 8);
    CHECK(outside_untouched(p.c));
  }
}

template <class T>
void check_threads(Size size, Form form) {
  const int before = thread_count();
  std::vector<std::vector<T>> results;
  for (int threads : {1, 2, 3}) {
    set_thread_count(threads);
    Product<T> p(size, form);
    p.run();
    results.push_back(p.c.storage);
  }
  set_thread_count(before);
  for (const auto& result : {results[1], results[2]})
    CHECK(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(T)) == 0);
}

// Rows first..first+m-1 of a product computed alone have the bits they have in the whole product.
template <class T>
void check_rows(const Product<T>& whole, int64_t first, int64_t m) {
  Padded<T> c(m, whole.size.n, 3);
  const Strided<T> a = whole.a.view(whole.form.a_transposed);
  cpu::gemm<T>(m, whole.size.n, whole.size.k, {a.data + first * a.row, a.row, a.col},
               whole.b.view(whole.form.b_transposed), c.data(), c.stride, false, whole.bias.data());
  for (int64_t i = 0; i < m; ++i) {
    INFO("row ", first + i, " of ", m, " rows, b transposed ", whole.form.b_transposed);
    CHECK(std::memcmp(c.data() + i * c.stride, whole.c.data() + (first + i) * whole.c.stride,
                      whole.size.n * sizeof(T)) == 0);
  }
}

TEST_SUITE("ops") {
  TEST_CASE_TEMPLATE("gemm agrees with Eigen in every form at odd sizes", T, float, double) {
    const std::array<int64_t, 9> few = {1, 2, 5, 8, 13, 24, 33, 70, 97};
    for (std::size_t i = 0; i < few.size(); ++i)
      for (std::size_t j = 0; j < few.size(); ++j) check_all_forms<T>({few[i], few[j], few[(3 * i + 5 * j) % 9]});
    for (int64_t size = 1; size <= 70; ++size) check_all_forms<T>({size, 71 - size, (size * 29) % 71});
  }

  TEST_CASE_TEMPLATE("gemm agrees with Eigen over several passes and tasks", T, float, double) {
    check_all_forms<T>({257, 257, 257});
    check_all_forms<T>({97, 130, 1600});
    check_all_forms<T>({1, 300, 1600});
    check_all_forms<T>({7, 300, 1600});
  }

  TEST_CASE("a product wider than one block of packed columns agrees with Eigen") {
    Product<float> p({20, 9001, 700}, {false, true, true, true});
    const Matrix expected = p.expected();
    p.run();
    CHECK(relative_error<float>(p.c.matrix(), expected, 700) < 8);
  }

  TEST_CASE_TEMPLATE("an empty sum is zero or the bias, and nothing is added to C", T, float, double) {
    check_all_forms<T>({5, 9, 0});
    check_all_forms<T>({1, 40, 0});
  }

  TEST_CASE_TEMPLATE("gemm_serial gives the bits of gemm", T, float, double) {
    for (Size size : {Size{64, 96, 64}, Size{128, 64, 1024}, Size{33, 97, 24}, Size{1, 97, 800}, Size{6, 50, 31}})
      for (int i = 0; i < 8; ++i) {
        Product<T> p(size, form_of(i)), q(size, form_of(i));
        p.run();
        q.run_serial();
        CHECK(std::memcmp(p.c.storage.data(), q.c.storage.data(), p.c.storage.size() * sizeof(T)) == 0);
      }
  }

  TEST_CASE_TEMPLATE("the number of threads changes no bit of a product", T, float, double) {
    for (int i = 0; i < 16; ++i) {
      check_threads<T>({131, 193, 900}, form_of(i));
      check_threads<T>({1, 500, 900}, form_of(i));
      check_threads<T>({5, 500, 900}, form_of(i));
    }
  }

  TEST_CASE_TEMPLATE("a row of a product has the same bits whatever the number of rows", T, float, double) {
    for (int i : {8, 9, 10, 11})
      for (Size size : {Size{75, 193, 900}, Size{75, 97, 24}, Size{75, 15, 7}}) {
        Product<T> whole(size, form_of(i));
        whole.run();
        for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31}) check_rows(whole, m, m);
      }
  }

  TEST_CASE("matmul multiplies column ranges into a column range") {
    const Tensor a = test::randn({2, 15, 20}, 1), b = test::randn({11, 20}, 2), bias = test::randn({11}, 3);
    const Tensor y = test::randn({2, 15, 30}, 4), before = y.clone();
    cpu::CpuKernels().matmul({y, true}, {7, 11}, {a, false, {4, 9}}, {b, true, {5, 9}}, bias);
    const auto map = [](const Tensor& t) {
      return Eigen::Map<const Matrix>(t.data<double>(), t.shape().rows(), t.shape().last());
    };
    Matrix expected = map(before);
    expected.middleCols(7, 11) += map(a).middleCols(4, 9) * map(b).middleCols(5, 9).transpose();
    expected.middleCols(7, 11).rowwise() += map(bias.view({1, 11})).row(0);
    CHECK((map(y) - expected).cwiseAbs().maxCoeff() < 1e-13);
  }

  TEST_CASE("matmul multiplies a transposed column range, the last columns when no count is given") {
    const Tensor a = test::randn({15, 20}, 1), b = test::randn({15, 8}, 2), y = test::randn({16, 6}, 3);
    cpu::CpuKernels().matmul({y, false}, {}, {a, true, {4}}, {b, false, {1, 6}}, {});
    const auto map = [](const Tensor& t) {
      return Eigen::Map<const Matrix>(t.data<double>(), t.shape().rows(), t.shape().last());
    };
    const Matrix expected = map(a).middleCols(4, 16).transpose() * map(b).middleCols(1, 6);
    CHECK((map(y) - expected).cwiseAbs().maxCoeff() < 1e-13);
  }

  TEST_CASE("matmul does nothing when its result is not wanted") {
    const Tensor a = test::randn({3, 3}, 1);
    CHECK_NOTHROW(cpu::CpuKernels().matmul({}, {}, {a}, {a}, {}));
  }
}

}  // namespace
}  // namespace grt
