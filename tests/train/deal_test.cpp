#include "train/deal.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support.h"

namespace grt::test {

TEST_SUITE("train") {
  TEST_CASE("micro-batches are dealt back and forth, the deepest first") {
    const std::vector<int> depths = {1, 6, 2, 5, 3, 4, 2};  // sorted: 6 5 4 3 2 2 1 = indices 1 3 5 4 2 6 0
    CHECK(deal(depths, 0, 1) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
    CHECK(deal(depths, 0, 2) == std::vector<std::int64_t>{1, 2, 4});
    CHECK(deal(depths, 1, 2) == std::vector<std::int64_t>{0, 3, 5, 6});
    CHECK(deal(depths, 2, 3) == std::vector<std::int64_t>{4, 5});
    CHECK(deal(std::vector<int>{3}, 1, 2).empty());
  }

  TEST_CASE("every micro-batch falls to one rank, and the ranks' depths add up to nearly the same") {
    for (const int ranks : {1, 2, 3, 4, 7, 60, 64}) {
      std::vector<int> depths;
      for (std::uint64_t i = 0; i < 60; ++i) depths.push_back(1 + static_cast<int>(random_below({9, 0, 0}, i, 6)));
      std::set<std::int64_t> all;
      std::vector<int> sums;
      std::size_t count = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<std::int64_t> mine = deal(depths, rank, ranks);
        CHECK(std::is_sorted(mine.begin(), mine.end()));
        all.insert(mine.begin(), mine.end());
        count += mine.size();
        sums.push_back(0);
        for (const std::int64_t i : mine) sums.back() += depths[static_cast<std::size_t>(i)];
      }
      CHECK(all.size() == 60);
      CHECK(count == 60);
      CHECK(*std::max_element(sums.begin(), sums.end()) - *std::min_element(sums.begin(), sums.end()) <= 6);
    }
  }
}

}  // namespace grt::test
