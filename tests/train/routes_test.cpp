// What is gathered from the routing that a pass shows.
#include "train/routes.h"

#include <cmath>

#include "tests/support.h"

namespace grt::test {
namespace {

Tensor positions(Shape shape, const std::vector<std::int32_t>& values) {
  return Tensor::from<std::int32_t>(shape, values, cpu());
}
Tensor logits(const std::vector<double>& values) {
  return Tensor::from<double>({1, static_cast<std::int64_t>(values.size()), 1}, values, cpu());
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("a token's steps are those that took it, in its own sequence; what fills up a row is no token") {
    Routes routes;
    const Look* look = routes.next(2, 3);
    (*look)("routed", 1, positions({2, 3}, {0, 1, 2, 0, 1, 2}));
    (*look)("state", 1, logits({0}));
    (*look)("routed", 2, positions({2, 2}, {0, 2, 1, -1}));
    (*look)("routed", 3, positions({2, 1}, {2, -1}));
    CHECK(routes.steps() == std::vector<int>{2, 1, 3, 1, 2, 1});
    routes.next(1, 3);
    CHECK(routes.steps().empty());
  }

  TEST_CASE("the entropy of a router is the mean over its decisions: ln 2 where it cannot tell, 0 where it is sure") {
    Routes routes;
    CHECK_FALSE(routes.entropy().has_value());
    const Look* look = routes.next(1, 3);
    (*look)("router_logit", 2, logits({0}));
    CHECK(*routes.entropy() == doctest::Approx(std::log(2.0)).epsilon(1e-9));
    (*look)("router_logit", 2, logits({-900, INFINITY, NAN}));
    CHECK(*routes.entropy() == doctest::Approx(std::log(2.0) / 4).epsilon(1e-9));
    const double p = 1 / (1 + std::exp(-1.5)), h = -p * std::log(p) - (1 - p) * std::log(1 - p);
    routes.next(1, 3);
    (*look)("router_logit", 2, logits({1.5, -1.5}));
    CHECK(*routes.entropy() == doctest::Approx((std::log(2.0) + 2 * h) / 6).epsilon(1e-9));
  }
}

}  // namespace grt::test
