// The thread pool: what is run, where, and what comes back.
#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support.h"

namespace grt::test {
namespace {

// Sets the thread count for one test.
struct Threads {
  int before = thread_count();
  explicit Threads(int n) { set_thread_count(n); }
  ~Threads() { set_thread_count(before); }
};

// One float sum for each chunk, added in chunk order.
float chunked_sum(std::int64_t n, std::int64_t grain) {
  std::vector<float> partial(static_cast<std::size_t>((n - 1) / grain + 1));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    float sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += 1.0f / static_cast<float>(i + 1);
    partial[static_cast<std::size_t>(begin / grain)] = sum;
  });
  float total = 0;
  for (float p : partial) total += p;
  return total;
}

TEST_SUITE("core") {
  TEST_CASE("parallel_for runs every index once, in chunks of the grain") {
    for (int threads : {1, 2, 3, 7}) {
      const Threads use(threads);
      for (std::int64_t n : {0, 1, 5, 64, 1000}) {
        for (std::int64_t grain : {1, 3, 64, 5000}) {
          std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
          std::atomic<int> wrong = 0;
          parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
            if (begin % grain != 0 || end != std::min(n, begin + grain)) ++wrong;
            for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
          });
          CAPTURE(threads);
          CAPTURE(n);
          CAPTURE(grain);
          CHECK(wrong == 0);
          int not_once = 0;
          for (const auto& h : hits) not_once += h != 1;
          CHECK(not_once == 0);
        }
      }
    }
  }

  TEST_CASE("several threads take part, each under its own index") {
    const Threads use(3);
    std::vector<std::atomic<int>> seen(3);
    std::atomic<int> arrived = 0, outside = 0;
    // Each chunk waits for the others, so three threads must be at work.
    parallel_for(3, 1, [&](std::int64_t, std::int64_t) {
      const int index = thread_index();
      if (index < 0 || index >= 3) {
        ++outside;
      } else {
        ++seen[static_cast<std::size_t>(index)];
      }
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
    CHECK(outside == 0);
    for (const auto& s : seen) CHECK(s == 1);
    CHECK(thread_index() == 0);
  }

  TEST_CASE("what a busy thread has left of its share is done by others") {
    for (int threads : {2, 3}) {
      const Threads use(threads);
      std::atomic<int> others = 0;
      bool in_time = false;
      parallel_for(24, 1, [&](std::int64_t i, std::int64_t) {
        if (i > 0) {
          ++others;
          return;
        }
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
        while (others < 23 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        in_time = others == 23;
      });
      CHECK(in_time);
      CHECK(others == 23);
    }
  }

  TEST_CASE("a nested loop runs inside its chunk, on the same thread") {
    const Threads use(3);
    std::vector<std::atomic<int>> hits(20 * 30);
    std::atomic<int> elsewhere = 0;
    parallel_for(20, 1, [&](std::int64_t i, std::int64_t) {
      const auto self = std::this_thread::get_id();
      parallel_for(30, 4, [&](std::int64_t begin, std::int64_t end) {
        elsewhere += std::this_thread::get_id() != self;
        for (std::int64_t j = begin; j < end; ++j) ++hits[static_cast<std::size_t>(i * 30 + j)];
      });
    });
    CHECK(elsewhere == 0);
    int not_once = 0;
    for (const auto& h : hits) not_once += h != 1;
    CHECK(not_once == 0);
  }

  TEST_CASE("the exception of the lowest chunk comes back after all chunks ended, and the pool lives on") {
    for (int threads : {2, 3}) {
      const Threads use(threads);
      for (int round = 0; round < 50; ++round) {
        std::atomic<int> ran = 0;
        const std::string text = error_of([&] {
          parallel_for(40, 1, [&](std::int64_t i, std::int64_t) {
            ++ran;
            if (i % 10 == 7) fail("chunk {}", i);
          });
        });
        CHECK(text == "chunk 7");
        CHECK(ran == 40);
      }
      std::atomic<int> count = 0;
      parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++count; });
      CHECK(count == 100);
    }
  }

  TEST_CASE("an exception from a nested loop comes back through both") {
    const Threads use(2);
    CHECK_THROWS_AS(parallel_for(8, 1,
                                 [](std::int64_t, std::int64_t) {
                                   parallel_for(8, 1, [](std::int64_t, std::int64_t) { throw std::out_of_range("x"); });
                                 }),
                    std::out_of_range);
  }

  TEST_CASE("sums in chunk order are bit-equal for any number of threads") {
    set_thread_count(1);
    const float one = chunked_sum(100003, 97);
    for (int threads : {2, 3, 8}) {
      const Threads use(threads);
      for (int round = 0; round < 20; ++round) CHECK(chunked_sum(100003, 97) == one);
    }
    set_thread_count(allowed_cpus());
  }

  TEST_CASE("many short loops in a row lose no chunk, also after the workers fell asleep") {
    const Threads use(4);
    std::int64_t total = 0;
    for (int loop = 0; loop < 5000; ++loop) {
      std::atomic<std::int64_t> sum = 0;
      parallel_for(5, 1, [&](std::int64_t i, std::int64_t) { sum += i; });
      total += sum;
      if (loop % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK(total == 5000 * 10);
  }

  TEST_CASE("loops started from two threads at once do not mix") {
    const Threads use(3);
    std::atomic<int> wrong = 0;
    const auto loops = [&] {
      for (int loop = 0; loop < 500; ++loop) {
        std::atomic<int> count = 0;
        parallel_for(9, 1, [&](std::int64_t, std::int64_t) { ++count; });
        wrong += count != 9;
      }
    };
    std::thread other(loops);
    loops();
    other.join();
    CHECK(wrong == 0);
  }

  TEST_CASE("the thread count is what was set, and nonsense is refused") {
    const Threads use(5);
    CHECK(thread_count() == 5);
    CHECK(contains(error_of([] { set_thread_count(0); }), "must be between 1 and 1024, not 0"));
    CHECK(contains(error_of([] { set_thread_count(-3); }), "not -3"));
    CHECK(contains(error_of([] { set_thread_count(1 << 30); }), "not 1073741824"));
    CHECK(contains(error_of([] { parallel_for(8, 0, [](std::int64_t, std::int64_t) {}); }), "grain"));
    CHECK(thread_count() == 5);
  }
}

}  // namespace
}  // namespace grt::test
