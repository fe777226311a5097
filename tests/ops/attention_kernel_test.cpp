// Causal attention against the oracle, against plain loops in double, and against itself through the cache of keys.
#include <bit>

#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

struct Size {
  std::int64_t batch, length, heads, width;
  std::int64_t channels() const { return heads * width; }
  Shape wide() const { return {batch, length, 3 * channels()}; }
  Shape narrow() const { return {batch, length, channels()}; }
};

// Queries of a whole vector, of less, of several blocks, of one more than a block, of several groups of blocks, of the
// larger blocks.
const Size kSizes[] = {{2, 9, 2, 5},    {1, 1, 1, 1},    {2, 64, 1, 16}, {1, 65, 3, 7},
                       {1, 131, 2, 20}, {1, 300, 1, 40}, {1, 515, 1, 8}};

struct Result {
  Values out, lse, dqkv;
};

Result reference(const Size& size, const Values& qkv, const Values& dout) {
  const std::int64_t length = size.length, width = size.width, channels = size.channels();
  Result r{Values(dout.size()), {}, Values(qkv.size())};
  for (std::int64_t b = 0; b < size.batch; ++b)
    for (std::int64_t h = 0; h < size.heads; ++h) {
      // The element of q, k or v (part 0, 1, 2) at position t.
      const auto at = [&](std::int64_t part, std::int64_t t) {
        return static_cast<std::size_t>(((b * length + t) * 3 + part) * channels + h * width);
      };
      for (std::int64_t i = 0; i < length; ++i) {
        const std::size_t o = static_cast<std::size_t>((b * length + i) * channels + h * width);
        const std::size_t n = static_cast<std::size_t>(width), keys = static_cast<std::size_t>(i + 1);
        const double scale = 1 / std::sqrt(static_cast<double>(width));
        Values p(keys), dp(keys);
        for (std::size_t j = 0; j < keys; ++j)
          for (std::size_t c = 0; c < n; ++c) p[j] += scale * qkv[at(0, i) + c] * qkv[at(1, j) + c];
        const double top = *std::max_element(p.begin(), p.end());
        double total = 0, delta = 0;
        for (double& e : p) total += e = std::exp(e - top);
        r.lse.push_back(top + std::log(total));
        for (std::size_t j = 0; j < keys; ++j) {
          p[j] /= total;
          for (std::size_t c = 0; c < n; ++c) {
            r.out[o + c] += p[j] * qkv[at(2, j) + c];
            dp[j] += dout[o + c] * qkv[at(2, j) + c];
            r.dqkv[at(2, j) + c] += p[j] * dout[o + c];
          }
          delta += p[j] * dp[j];
        }
        for (std::size_t j = 0; j < keys; ++j)
          for (std::size_t c = 0; c < n; ++c) {
            r.dqkv[at(0, i) + c] += scale * p[j] * (dp[j] - delta) * qkv[at(1, j) + c];
            r.dqkv[at(1, j) + c] += scale * p[j] * (dp[j] - delta) * qkv[at(0, i) + c];
          }
      }
    }
  return r;
}

struct Forward {
  Tensor out, lse;
};
Forward forward(const Tensor& qkv, int heads) {
  const Shape& s = qkv.shape();
  Forward f{Tensor::empty({s[0], s[1], s[2] / 3}, qkv.dtype(), cpu()),
            Tensor::empty({s[0], heads, s[1]}, qkv.dtype(), cpu())};
  kernels().attention(f.out, f.lse, qkv, heads);
  return f;
}

void check_against(const Result& expected, const Size& size, const Tensor& qkv, const Tensor& dout) {
  CAPTURE(size.length);
  const DType type = qkv.dtype();
  const int heads = static_cast<int>(size.heads);
  const Tensor lse = Tensor::empty({size.batch, size.heads, size.length}, type, cpu());
  const Values y = written(size.narrow(), type, [&](const Tensor& to) { kernels().attention(to, lse, qkv, heads); });
  CHECK(relative_error(y, expected.out) < tolerance(type));
  if (!expected.lse.empty()) CHECK(relative_error(values(lse), expected.lse) < tolerance(type));
  const Tensor out = tensor(size.narrow(), y, type);
  check_into(expected.dqkv, size.wide(), type,
             [&](const Into& to) { kernels().attention_backward(to, dout, qkv, out, lse, heads); });
}

// Rows first..first+count-1 of every sequence of x (B, T, C).
Tensor slice(const Tensor& x, std::int64_t first, std::int64_t count) {
  const Tensor y = Tensor::empty({x.dim(0), count, x.dim(2)}, x.dtype(), cpu());
  for (std::int64_t b = 0; b < x.dim(0); ++b)
    kernels().copy(Into{y.rows(b * count, count)}, x.rows(b * x.dim(1) + first, count));
  return y;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("attention and its gradient agree with the oracle") {
    const Json module = reference("attention");
    for (DType type : kReals) {
      const Size size{2, 9, 2, 5};
      const Tensor qkv = tensor(size.wide(), numbers(module.at("qkv")), type);
      const Tensor dout = tensor(size.narrow(), numbers(module.at("dout")), type);
      Result expected{numbers(module.at("out")), {}, numbers(module.at("dqkv"))};
      const auto [out, lse] = forward(qkv, 2);
      const Tensor dqkv = Tensor::like(qkv);
      kernels().attention_backward(Into{dqkv}, dout, qkv, out, lse, 2);
      CHECK(relative_error(values(out), expected.out) < 1e-5);
      CHECK(relative_error(values(dqkv), expected.dqkv) < 1e-5);
    }
  }

  TEST_CASE("attention and its gradient are what their formulas say") {
    for (DType type : kReals)
      for (const Size& size : kSizes) {
        const Tensor qkv = randn(size.wide(), 1, type), dout = randn(size.narrow(), 2, type);
        check_against(reference(size, values(qkv), values(dout)), size, qkv, dout);
      }
  }

  TEST_CASE("later positions have no effect whatever their scores") {
    const Size size{1, 70, 1, 8};
    for (DType type : kReals) {
      const Tensor qkv = randn(size.wide(), 3, type), dout = randn(size.narrow(), 4, type);
      Values v = values(qkv), d = values(dout);
      const Values before = values(forward(qkv, 1).out);
      const std::size_t wide = 24, from = 40;  // positions 40 and later get scores of about 1e5
      for (std::size_t i = from * wide; i < v.size(); ++i) v[i] = i % wide < 16 ? 190 : 1e5 * v[i];
      const Tensor changed = tensor(size.wide(), v, type);
      const auto [out, lse] = forward(changed, 1);
      const Values after = values(out);
      CHECK(std::equal(before.begin(), before.begin() + from * 8, after.begin()));
      CHECK(kernels().count_not_finite(out) == 0);
      // Nothing flows back from the earlier queries to the later keys and values.
      std::fill(d.begin() + from * 8, d.end(), 0.0);
      const Tensor dqkv = Tensor::like(qkv);
      kernels().attention_backward(Into{dqkv}, tensor(size.narrow(), d, type), changed, out, lse, 1);
      const Values flow = values(dqkv);
      CHECK(std::all_of(flow.begin() + from * wide, flow.end(), [](double x) { return x == 0; }));
      CHECK(std::any_of(flow.begin(), flow.begin() + from * wide, [](double x) { return x != 0; }));
      CHECK(kernels().count_not_finite(dqkv) == 0);
    }
  }

  TEST_CASE("scores of 1e5 of either sign give a hard choice and no NaN") {
    const std::int64_t length = 66;
    Values v(static_cast<std::size_t>(length * 3));
    for (std::size_t t = 0; t < static_cast<std::size_t>(length); ++t) {
      v[3 * t] = 1000;                            // q
      v[3 * t + 1] = t == 3 ? 100.0 : -100.0;     // k
      v[3 * t + 2] = static_cast<double>(t) + 1;  // v
    }
    const Tensor qkv = tensor({1, length, 3}, v);
    const auto [out, lse] = forward(qkv, 1);
    const Values y = values(out);
    for (std::size_t t = 0; t < y.size(); ++t)
      CHECK(y[t] == doctest::Approx(t < 3 ? (static_cast<double>(t) + 2) / 2 : 4).epsilon(1e-6));
    const Tensor dqkv = Tensor::like(qkv);
    kernels().attention_backward(Into{dqkv}, out, qkv, out, lse, 1);
    CHECK(kernels().count_not_finite(dqkv) == 0);
  }

  TEST_CASE("a NaN in a key, whatever its bits, reaches all queries that see it and no others") {
    for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00000u})
      for (const std::int64_t length : {3, 70}) {
        CAPTURE(bits);
        CAPTURE(length);
        const Tensor qkv = randn({1, length, 24}, 9, DType::f32);
        qkv.data<float>()[24 + 8] = std::bit_cast<float>(bits);  // the key of position 1
        const auto [out, lse] = forward(qkv, 1);
        CHECK(kernels().count_not_finite(out.rows(0, 1)) == 0);
        CHECK(kernels().count_not_finite(out) == (length - 1) * 8);
        CHECK(kernels().count_not_finite(lse) == length - 1);
      }
  }

  TEST_CASE("attention with factors rounded to bf16 stays within 2e-2 of the exact one, and is another") {
    const std::unique_ptr<Device> device = open_cpu(DType::bf16);
    for (const Size& size : {Size{1, 131, 2, 20}, Size{1, 515, 1, 8}}) {
      const Tensor qkv = randn(size.wide(), 1, DType::f32), dout = randn(size.narrow(), 2, DType::f32);
      const auto [out, lse] = forward(qkv, size.heads);
      const Tensor rounded = Tensor::like(out), rounded_lse = Tensor::like(lse), d = Tensor::like(qkv),
                   rounded_d = Tensor::like(qkv);
      device->kernels().attention(rounded, rounded_lse, qkv, size.heads);
      CHECK_FALSE(same_bits(rounded, out));
      CHECK(relative_error(values(rounded), values(out)) < 2e-2);
      kernels().attention_backward(Into{d}, dout, qkv, out, lse, size.heads);
      device->kernels().attention_backward(Into{rounded_d}, dout, qkv, rounded, rounded_lse, size.heads);
      CHECK(relative_error(values(rounded_d), values(d)) < 2e-2);
    }
  }

  TEST_CASE("a sequence's attention does not depend on the others of its batch") {
    const Tensor qkv = randn({3, 77, 3 * 2 * 12}, 5, DType::f32);
    const Forward all = forward(qkv, 2), one = forward(slice(qkv.view({1, 3 * 77, 72}), 77, 77), 2);
    CHECK(same_bits(all.out.rows(77, 77).view({1, 77, 24}), one.out));
    CHECK(same_bits(all.lse.rows(2, 2).view({1, 2, 77}), one.lse));
  }

  TEST_CASE("attention in pieces through the cache is attention in one") {
    const std::int64_t length = 150, capacity = 160;
    for (DType type : kReals) {
      const Tensor qkv = randn({2, length, 3 * 3 * 7}, 6, type);
      const Tensor whole = forward(qkv, 3).out;
      const Guarded keys({2, 3, capacity, 7}, type, 0.5), cached({2, 3, capacity, 7}, type, 0.5);
      std::int64_t past = 0;
      for (std::int64_t n : {1, 70, 1, 2, 5, 71}) {  // single tokens, a few, more than a block
        const Values expected = values(slice(whole, past, n));
        const Tensor part = slice(qkv, past, n);
        const Values y = written({2, n, 21}, type, [&](const Tensor& to) {
          kernels().attention_cached(to, keys.inside(), cached.inside(), part, past, 3);
        });
        CHECK(relative_error(y, expected) < tolerance(type));
        past += n;
      }
      CHECK(past == length);
      CHECK(keys.intact());
      CHECK(cached.intact());
      const Values rest = values(keys.inside().view({6, capacity * 7}).rows(5, 1));
      CHECK(std::all_of(rest.begin() + length * 7, rest.end(), [](double x) { return x == 0.5; }));
    }
  }

  TEST_CASE("attention does not depend on the number of threads") {
    const Tensor qkv = randn({2, 300, 3 * 2 * 12}, 7, DType::f32), dout = randn({2, 300, 24}, 8, DType::f32);
    check_thread_independent([&] {
      const auto [out, lse] = forward(qkv, 2);
      const Tensor dqkv = Tensor::like(qkv), keys = Tensor::zeros({2, 2, 300, 12}, DType::f32, cpu());
      const Tensor cached = Tensor::like(keys), again = Tensor::like(out);
      kernels().attention_backward(Into{dqkv}, dout, qkv, out, lse, 2);
      kernels().attention_cached(again, keys, cached, qkv, 0, 2);
      return std::vector{out, lse, dqkv, again, keys};
    });
  }
}

}  // namespace grt
