// What ranks say to each other: sums, shares, broadcasts, with sizes that divide by nothing.
#include "core/comm.h"

#include <numeric>

#include "core/threads.h"
#include "tests/ranks/world.h"

namespace grt::test {
namespace {

// Of a size that leaves shares of unequal length, or none to some.
constexpr std::int64_t kSizes[] = {16, 48, 1000, 100003};

// Rank r's part in a sum.
Tensor part(std::int64_t n, int rank, DType dtype) { return randn({n}, 100 + static_cast<std::uint32_t>(rank), dtype); }

std::vector<double> sum_of_parts(std::int64_t n, DType dtype) {
  std::vector<double> sum(static_cast<std::size_t>(n));
  for (int r = 0; r < world().size(); ++r) {
    const std::vector<double> values = test::values(part(n, r, dtype));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

}  // namespace

TEST_SUITE("ranks") {
  TEST_CASE("the ranks are those that the launcher started, each with a number of its own") {
    CHECK(world().size() == launched_ranks());
    const std::vector<std::int64_t> numbers = world().gather<std::int64_t>(world().rank());
    for (std::size_t r = 0; r < numbers.size(); ++r) CHECK(numbers[r] == static_cast<std::int64_t>(r));
    CHECK(world().local_size() == world().size());  // these tests run on one machine
    CHECK(world().local_rank() == world().rank());
  }

  TEST_CASE("tensors add up to the sum over ranks, with the same bits everywhere and every time") {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(n);
        const Tensor t = part(n, world().rank(), dtype), again = t.clone();
        world().all_reduce(t);
        world().all_reduce(again);
        const std::vector<double> expected = sum_of_parts(n, dtype), sum = values(t);
        double worst = 0;
        for (std::size_t i = 0; i < sum.size(); ++i) worst = std::max(worst, std::abs(sum[i] - expected[i]));
        CHECK(worst < (dtype == DType::f32 ? 1e-5 : 1e-13));  // a few roundings of values below 10
        CHECK(same_on_all_ranks(t));
        CHECK(same_bits(t, again));
      }
    }
  }

  TEST_CASE("a rank's share of a sum is that part of the whole sum, and nothing else changes") {
    for (const std::int64_t n : kSizes) {
      const Tensor before = part(n, world().rank(), DType::f32), whole = before.clone(), mine = before.clone();
      world().all_reduce(whole);
      world().reduce_scatter(mine);
      const auto [begin, count] = world().share(n);
      for (std::int64_t i = 0; i < n; ++i) {
        const bool own = begin <= i && i < begin + count;
        if (mine.data<float>()[i] != (own ? whole : before).data<float>()[i]) FAIL("element " << i << " of " << n);
      }
    }
  }

  TEST_CASE("shares come together in order, everywhere or on rank 0") {
    for (const std::int64_t n : kSizes) {
      const Tensor whole = part(n, 0, DType::f32), t = Tensor::zeros({n}, DType::f32, cpu());
      const auto [begin, count] = world().share(n);
      const Tensor own = whole.range(begin, {count});
      cpu().copy(t.range(begin, {count}).raw(), own.raw(), own.bytes());
      world().all_gather(t);
      CHECK(same_bits(t, whole));
      const Tensor collected = world().rank() == 0 ? Tensor::zeros({n}, DType::f32, cpu()) : Tensor();
      world().collect(own, collected);
      if (world().rank() == 0) CHECK(same_bits(collected, whole));
    }
  }

  TEST_CASE("rank 0's values reach every rank") {
    const Tensor t = part(1000, world().rank(), DType::f64);
    world().broadcast(t);
    CHECK(same_bits(t, part(1000, 0, DType::f64)));
  }

  TEST_CASE("the ranks on a machine's CPUs share them") {
    const std::vector<std::int64_t> threads = world().gather<std::int64_t>(threads_per_rank(world()));
    CHECK(*std::min_element(threads.begin(), threads.end()) >= 1);
    const std::int64_t all = std::accumulate(threads.begin(), threads.end(), std::int64_t{0});
    const std::vector<std::int64_t> cpus = world().gather<std::int64_t>(allowed_cpus());
    // Bound to CPUs of their own: all of those. Not bound: no more than there are, but for one each at least.
    const std::int64_t most = std::accumulate(cpus.begin(), cpus.end(), std::int64_t{0});
    CHECK(all <= most);
    const std::vector<std::int64_t> sets = world().gather(cpu_set_id());
    if (std::count(sets.begin(), sets.end(), sets[0]) == world().size())
      CHECK(all <= std::max<std::int64_t>(world().size(), cpus[0]));
  }
}

}  // namespace grt::test
