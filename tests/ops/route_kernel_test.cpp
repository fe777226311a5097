// Selection and the routers' loss against the oracle, and what the cases of ops/cases.cpp do not reach.
#include <limits>

#include "ops/ops.h"
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

Values places(const Values& scores, std::int64_t k, DType type) {
  const auto n = static_cast<std::int64_t>(scores.size());
  return values(top_k(tensor({1, n}, scores, type), k).index);
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("top_k takes the reference's positions: the lower of equal scores, in ascending order") {
    const Json rows = reference("mor_topk");
    REQUIRE(rows.size() == 12);
    for (const Json& row : rows)
      for (const DType type : kReals)
        CHECK(places(row["g"].get<Values>(), row["k"], type) == row["positions"].get<Values>());
  }

  TEST_CASE("top_k's mask marks the places of its index") {
    const Tensor scores = randn({4, 33}, 1, DType::f32);
    const TopK top = top_k(scores, 9);
    const Values index = values(top.index);
    Values mask(4 * 33, 0.0);
    for (std::size_t i = 0; i < index.size(); ++i) mask[i / 9 * 33 + static_cast<std::size_t>(index[i])] = 1;
    CHECK(values(top.chosen) == mask);
  }

  TEST_CASE("top_k takes numbers before NaNs, and infinities as numbers") {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
    const Values scores = {kNaN, 1, -kInf, kNaN, kInf, 0, kNaN};
    CHECK(places(scores, 1, DType::f32) == Values{4});
    CHECK(places(scores, 4, DType::f32) == Values{1, 2, 4, 5});
    CHECK(places(scores, 5, DType::f32) == Values{0, 1, 2, 4, 5});
  }

  TEST_CASE("bce_with_logits agrees with the oracle from -40 to 40") {
    const Json module = reference("bce_with_logits");
    const Values z = module["z"];
    for (const DType type : kReals)
      for (const auto& [key, target] : {std::pair{"target_0", 0.0}, {"target_1", 1.0}}) {
        const Shape shape{static_cast<std::int64_t>(z.size())};
        const Values losses = written(shape, type, [&](const Tensor& y) {
          kernels().bce_with_logits(y, tensor(shape, z, type), tensor(shape, Values(z.size(), target), type));
        });
        const Values expected = module[key];
        for (std::size_t i = 0; i < z.size(); ++i)
          CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(type == DType::f32 ? 1e-6 : 1e-9));
        double sum = 0;
        for (const double x : expected) sum += x;
        const Var mean = bce_with_logits(tensor(shape, z, type), tensor(shape, Values(z.size(), target), type));
        CHECK(values(mean.value())[0] == doctest::Approx(sum / static_cast<double>(z.size())).epsilon(1e-6));
      }
  }

  TEST_CASE("the gradients of routing set or add, and write nothing else") {
    const std::int64_t B = 2, T = 7, k = 3, C = 19;
    const Tensor index = integers({B, k}, {0, 2, 5, 1, 2, 6});
    for (const DType type : kReals) {
      const Tensor z = randn({B, k, 1}, 1, type), o = randn({B, k, C}, 2, type), dy = randn({B, T, C}, 3, type);
      const Values zs = values(z), os = values(o), dys = values(dy), rows = values(index);
      Values dz(B * k, 0.0), d_o(B * k * C);
      for (std::int64_t i = 0; i < B * k; ++i) {
        const double s = 1 / (1 + std::exp(-zs[i]));
        for (std::int64_t c = 0; c < C; ++c) {
          const double d = dys[(i / k * T + static_cast<std::int64_t>(rows[i])) * C + c];
          d_o[i * C + c] = 0.5 * s * d;
          dz[i] += 0.5 * s * (1 - s) * d * os[i * C + c];
        }
      }
      check_into(dz, z.shape(), type,
                 [&](const Into& to) { kernels().gated_scatter_backward(to, Into{}, dy, index, z, o, 0.5f); });
      check_into(d_o, o.shape(), type,
                 [&](const Into& to) { kernels().gated_scatter_backward(Into{}, to, dy, index, z, o, 0.5f); });
    }
  }

  TEST_CASE("integers are gathered as they are") {
    const Tensor x = integers({2, 3, 1}, {5, 7, 9, 1 << 30, -4, 6});
    CHECK(values(gather_rows(x, integers({2, 2}, {0, 2, 0, 1}))) == Values{5, 9, 1 << 30, -4});
  }
}

}  // namespace grt
