// The learning rate against the reference values, and its edges.
#include "train/schedule.h"

#include <limits>

#include "core/json.h"
#include "ops/kernels.h"
#include "tests/support.h"

using namespace grt;
using test::contains;
using test::error_of;

TEST_SUITE("train") {
  TEST_CASE("the learning rate is the reference's at every listed step") {
    const Json modules = read_json(test::fixture("modules.json"));
    for (const Json& c : modules.at("lr_schedule")) {
      const Schedule schedule{c.at("lr"), c.at("min_lr"), c.at("warmup_steps"), c.at("lr_decay_steps")};
      check_schedule(schedule);
      for (std::size_t i = 0; i < c.at("steps").size(); ++i) {
        const double expected = c.at("values").at(i);  // 11 significant digits
        CHECK(learning_rate(schedule, c.at("steps").at(i)) == doctest::Approx(expected).epsilon(1e-10));
      }
    }
  }

  TEST_CASE("a warm-up as long as the decay, or longer, leaves every rate finite and in range") {
    for (const std::int64_t warmup : {0, 1, 10}) {
      for (const std::int64_t decay : {0, 1, 5, 10, 11}) {
        const Schedule schedule{1e-3, 1e-4, warmup, decay};
        check_schedule(schedule);
        for (std::int64_t step = 0; step < 30; ++step) {
          const double lr = learning_rate(schedule, step);
          CHECK((lr > 0 && lr <= 1e-3));
          if (step < warmup) CHECK(lr == doctest::Approx(1e-3 * (step + 1.0) / (warmup + 1.0)));
          if (step >= warmup && step >= decay) CHECK(lr == 1e-4);
        }
      }
    }
  }

  TEST_CASE("the first step after the warm-up has the peak rate") {
    CHECK(learning_rate({1e-3, 1e-4, 10, 11}, 10) == doctest::Approx(1e-3));
    CHECK(learning_rate({1e-3, 1e-4, 0, 10}, 0) == doctest::Approx(1e-3));
  }

  TEST_CASE("a schedule that cannot be followed names its flag") {
    const auto error_for = [](const Schedule& s) { return error_of([&] { check_schedule(s); }); };
    CHECK(contains(error_for({-1e-3, 0, 0, 10}), "--lr: must be a finite number >= 0, not -0.001"));
    CHECK(contains(error_for({1e-3, -1e-4, 0, 10}), "--min-lr: must be a finite number >= 0, not -0.0001"));
    CHECK(contains(error_for({std::numeric_limits<double>::quiet_NaN(), 0, 0, 10}), "--lr"));
    CHECK(contains(error_for({std::numeric_limits<double>::infinity(), 0, 0, 10}), "--lr"));
    CHECK(contains(error_for({1e-4, 1e-3, 0, 10}), "--min-lr: 0.001 is above the peak"));
    CHECK(contains(error_for({1e-3, 1e-4, -1, 10}), "--warmup-steps: must be >= 0, not -1"));
    CHECK(contains(error_for({1e-3, 1e-4, 0, -5}), "--lr-decay-steps: must be >= 0, not -5"));
  }

  TEST_CASE("the clipping coefficient is the reference's") {
    const Json modules = read_json(test::fixture("modules.json"));
    for (const Json& c : modules.at("gradient_clipping")) {
      const double expected = c.at("coefficient");
      CHECK(clip_coefficient(c.at("norm"), c.at("clip")) == doctest::Approx(expected).epsilon(1e-9));
    }
  }

  TEST_CASE("clipping is off at 0 and leaves small gradients alone") {
    CHECK(clip_coefficient(1e9, 0) == 1);
    CHECK(clip_coefficient(0, 1) == 1);
    CHECK(clip_coefficient(0.5, 1) == 1);
    CHECK(clip_coefficient(4, 1) == doctest::Approx(0.25));
  }
}
