// Layer normalization against the oracle (rows of tiny variance and of large mean) and against plain loops in double.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

struct Result {
  Values y, mean, rstd, dx, dw, db;
};

Result reference(const Values& x, const Values& w, const Values& b, const Values& dy, double eps) {
  const std::size_t width = w.size(), rows = x.size() / width;
  Result out{Values(x.size()), Values(rows), Values(rows), Values(x.size()), Values(width), Values(width)};
  for (std::size_t r = 0; r < rows; ++r) {
    const double* in = x.data() + r * width;
    const double* d = dy.data() + r * width;
    double mean = 0, variance = 0, a = 0, c = 0;
    for (std::size_t i = 0; i < width; ++i) mean += in[i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) variance += (in[i] - mean) * (in[i] - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (std::size_t i = 0; i < width; ++i) {
      const double n = (in[i] - mean) * rstd;
      out.y[r * width + i] = n * w[i] + (b.empty() ? 0 : b[i]);
      a += d[i] * w[i] / static_cast<double>(width);
      c += d[i] * w[i] * n / static_cast<double>(width);
      out.dw[i] += d[i] * n;
      out.db[i] += d[i];
    }
    for (std::size_t i = 0; i < width; ++i)
      out.dx[r * width + i] = rstd * (d[i] * w[i] - a - (in[i] - mean) * rstd * c);
    out.mean[r] = mean;
    out.rstd[r] = rstd;
  }
  return out;
}

struct Forward {
  Tensor y, mean, rstd;
};
Forward forward(const Tensor& x, const Tensor& w, const Tensor& b, float eps = 1e-5f) {
  const Tensor mean = Tensor::empty({x.shape().rows()}, x.dtype(), cpu());
  Forward out{Tensor::like(x), mean, Tensor::like(mean)};
  kernels().layernorm(out.y, out.mean, out.rstd, x, w, b, eps);
  return out;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("layernorm agrees with the oracle, with and without a bias") {
    for (const char* name : {"layernorm", "layernorm_bias"})
      for (DType type : kReals) {
        CAPTURE(name);
        const Json module = reference(name);
        const bool biased = !module.at("bias").is_null();
        const Tensor x = tensor({4, 13}, numbers(module.at("x")), type),
                     dy = tensor({4, 13}, numbers(module.at("dy")), type);
        const Tensor w = tensor({13}, numbers(module.at("weight")), type);
        const Tensor b = biased ? tensor({13}, numbers(module.at("bias")), type) : Tensor();
        const auto [y, mean, rstd] = forward(x, w, b, module.at("eps").get<float>());
        CHECK(relative_error(values(y), numbers(module.at("y"))) < 1e-5);
        const Tensor dx = Tensor::like(x), dw = Tensor::like(w), db = Tensor::like(w);
        kernels().layernorm_backward(Into{dx}, Into{dw}, biased ? Into{db} : Into{}, dy, x, w, mean, rstd);
        CHECK(relative_error(values(dx), numbers(module.at("dx"))) < 1e-5);
        CHECK(relative_error(values(dw), numbers(module.at("dweight"))) < 1e-5);
        if (biased) CHECK(relative_error(values(db), numbers(module.at("dbias"))) < 1e-5);
      }
  }

  TEST_CASE("layernorm and its gradients are what their formulas say") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 7}, Shape{5, 6}, Shape{3, 7, 33}, Shape{2051, 9}, Shape{70, 770}}) {
        const Shape channels{shape.last()};
        const Tensor x = randn(shape, 1, type), w = randn(channels, 2, type), b = randn(channels, 3, type);
        const Tensor dy = randn(shape, 4, type);
        const Result expected = reference(values(x), values(w), values(b), values(dy), 1e-5f);
        const auto [y, mean, rstd] = forward(x, w, b);
        CHECK(relative_error(values(y), expected.y) < tolerance(type));
        CHECK(relative_error(values(mean), expected.mean) < tolerance(type));
        CHECK(relative_error(values(rstd), expected.rstd) < tolerance(type));
        Kernels& k = kernels();
        const Tensor &mu = mean, &scale = rstd;
        check_into(expected.dx, shape, type,
                   [&](const Into& to) { k.layernorm_backward(to, Into{}, Into{}, dy, x, w, mu, scale); });
        check_into(expected.dw, channels, type,
                   [&](const Into& to) { k.layernorm_backward(Into{}, to, Into{}, dy, x, w, mu, scale); });
        check_into(expected.db, channels, type,
                   [&](const Into& to) { k.layernorm_backward(Into{}, Into{}, to, dy, x, w, mu, scale); });
      }
  }

  TEST_CASE("a mean far from zero costs layernorm only the rounding of the mean itself") {
    constexpr std::int64_t kWidth = 8191;
    Values v(kWidth);  // exact in float, whose spacing at 1e5 is 1/128
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = 1e5 + std::round(128 * random_normal({1}, i)) / 128;
    const Tensor x = tensor({1, kWidth}, v), w = tensor({kWidth}, Values(kWidth, 1.0));
    const Result expected = reference(v, values(w), {}, v, 1e-5f);
    const Forward got = forward(x, w, Tensor());
    CHECK(std::abs(values(got.mean)[0] - expected.mean[0]) < 1.01 / 256);
    // A float sum of some thousand squares in few lanes.
    CHECK(relative_error(values(got.rstd), expected.rstd) < 2e-5);
    CHECK(largest_difference(got.y, tensor({1, kWidth}, expected.y)) < 1.01 / 256);
  }

  TEST_CASE("a constant row is normalized to the bias") {
    const Tensor x = tensor({1, 37}, Values(37, 0.1)), w = tensor({37}, Values(37, 3.0)),
                 b = randn({37}, 5, DType::f32);
    CHECK(relative_error(values(forward(x, w, b).y), values(b)) < 1e-5);
  }

  TEST_CASE("add_layernorm has the bits of add and layernorm one after the other") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 5}, Shape{2, 19, 33}, Shape{40, 640}}) {
        const Tensor a = randn(shape, 1, type), b = randn(shape, 2, type), w = randn({shape.last()}, 3, type);
        const Tensor sum = Tensor::like(a), y = Tensor::like(a), expected = Tensor::like(a);
        const Tensor mean = randn({shape.rows()}, 4, type), rstd = Tensor::like(mean);
        kernels().add_layernorm(sum, y, mean, rstd, a, b, w, w, 1e-5f);
        kernels().add({expected}, a, b);
        const Forward apart = forward(expected, w, w);
        CHECK(same_bits(sum, expected));
        CHECK(same_bits(y, apart.y));
        CHECK(same_bits(mean, apart.mean));
        CHECK(same_bits(rstd, apart.rstd));
      }
  }

  TEST_CASE("layernorm's gradients do not depend on the number of threads") {
    const Tensor x = randn({333, 129}, 6, DType::f32), dy = randn({333, 129}, 7, DType::f32);
    const Tensor w = randn({129}, 8, DType::f32);
    check_thread_independent([&] {
      const auto [y, mean, rstd] = forward(x, w, Tensor());
      const std::vector<Tensor> out = {y, Tensor::like(x), Tensor::like(w), Tensor::like(w)};
      kernels().layernorm_backward(Into{out[1]}, Into{out[2]}, Into{out[3]}, dy, x, w, mean, rstd);
      return out;
    });
  }
}

}  // namespace grt
