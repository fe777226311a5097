// What a micro-batch is drawn as: functions of (seed, step, index) that no one's share of the work enters.
#include "train/trainer.h"

#include <cmath>
#include <set>

#include "tests/support.h"

namespace grt::test {
namespace {

TrainPlan plan(const std::string& sampler, bool per_step, std::uint64_t seed = 7) {
  TrainPlan p{};
  p.config.seed = seed;
  p.depth = {sampler, 1, 6};
  p.depth_per_step = per_step;
  return p;
}

std::vector<int> depths(const TrainPlan& p, std::int64_t first_step, std::int64_t steps, std::int64_t micro_batches) {
  std::vector<int> drawn;
  for (std::int64_t s = first_step; s < first_step + steps; ++s)
    for (std::int64_t i = 0; i < micro_batches; ++i) drawn.push_back(draw_depth(p, s, i));
  return drawn;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("the depths of a step are the same however many share its micro-batches, in whatever order") {
    for (const char* sampler : {"uniform", "poisson"}) {
      const TrainPlan p = plan(sampler, false);
      const std::vector<int> alone = depths(p, 0, 50, 12);
      for (const int ranks : {2, 3, 4, 12}) {
        std::vector<int> shared(alone.size());
        for (int rank = ranks - 1; rank >= 0; --rank)
          for (std::int64_t step = 49; step >= 0; --step)
            for (std::int64_t i = rank; i < 12; i += ranks) shared[step * 12 + i] = draw_depth(p, step, i);
        CHECK(shared == alone);
      }
      // A step of fewer micro-batches begins with the same ones.
      for (std::int64_t step = 0; step < 50; ++step) CHECK(depths(p, step, 1, 1)[0] == alone[step * 12]);
    }
  }

  TEST_CASE("seeds, steps and micro-batches draw depths of their own, each equally often") {
    const std::vector<int> drawn = depths(plan("uniform", false), 0, 1000, 6);
    CHECK(drawn != depths(plan("uniform", false, 8), 0, 1000, 6));
    std::vector<int> seen(7), first(7), equal(1);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      ++seen[drawn[i]];
      if (i % 6 == 0) ++first[drawn[i]];
      if (i > 0) equal[0] += drawn[i] == drawn[i - 1];
    }
    for (int r = 1; r <= 6; ++r) {
      CHECK(std::abs(seen[r] - 1000) < 5 * std::sqrt(6000 / 6 * 5 / 6.0));
      CHECK(std::abs(first[r] - 1000 / 6.0) < 5 * std::sqrt(1000 / 6.0 * 5 / 6));
    }
    CHECK(std::abs(equal[0] - 1000) < 5 * std::sqrt(6000 / 6 * 5 / 6.0));  // neighbours agree as often as by chance
  }

  TEST_CASE("with --depth-scope step all micro-batches of a step have one depth, and steps differ") {
    const TrainPlan p = plan("uniform", true);
    std::set<int> of_steps;
    for (std::int64_t step = 0; step < 40; ++step) {
      const std::vector<int> drawn = depths(p, step, 1, 9);
      CHECK(std::set<int>(drawn.begin(), drawn.end()).size() == 1);
      of_steps.insert(drawn[0]);
    }
    CHECK(of_steps.size() == 6);
  }
}

}  // namespace grt::test
