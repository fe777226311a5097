// What bench is made of: turns, ratios, the other BLAS, processes that answer lines. Timings are constructed.
#include <cstdlib>
#include <functional>

#include "core/threads.h"
#include "ops/reference.h"
#include "tests/support.h"
#include "tools/bench/openblas.h"
#include "tools/bench/process.h"
#include "tools/bench/report.h"

namespace grt {
namespace {

using test::contains;
using test::cpu;
using test::error_of;

Process shell(const std::string& script, const std::vector<std::string>& environment = {}) {
  return Process("a shell", {"/bin/sh", "-c", script}, environment);
}

TEST_SUITE("tools") {
  TEST_CASE("bench: a median of an even number of timings lies between the middle two") {
    CHECK(timing_of({3, 1, 2}).median == 2);
    CHECK(timing_of({4, 1, 3, 2}).median == 2.5);
    CHECK(timing_of({4, 1, 3, 2}).best == 1);
  }

  TEST_CASE("bench: work that is compared takes turns, and each has the median of its own rounds") {
    std::string order;
    const double first[] = {0, 0, 5, 0, 1, 0, 3}, second[] = {0, 0, 20, 0, 60, 0, 40};
    std::size_t i = 0, j = 0;
    const std::vector<std::function<double()>> turns = {[&] { return order += 'a', first[i++]; },
                                                        [&] { return order += 'b', second[j++]; }};
    const std::vector<Timing> times = take_turns(3, turns);
    CHECK(order == "abaabbaabbaabb");  // once to touch memory, then in each round once to wake up and once for the time
    CHECK(times[0].median == 3);
    CHECK(times[1].median == 40);
    CHECK(times[1].best == 20);
    CHECK(Peer{"other", times[1]}.ratio(times[0]) == doctest::Approx(40.0 / 3));
  }

  TEST_CASE("bench: a row has its rates, shares and ratios by what was timed") {
    Report report(cpu());
    report.begin("constructed");
    report.add({.group = "constructed",
                .name = "work",
                .time = {2, 1},
                .flops = 6e9,
                .tokens = 10,
                .peers = {{"slow", {5, 4}}, {"fast", {1, 1}}}});
    const Json row = report.rows().back();
    CHECK(row["tokens_per_s"] == 5);
    CHECK(row["gflops"] == 3);
    CHECK(row["best_gflops"] == 6);
    CHECK(row["gflops_share_of_peak"].get<double>() == doctest::Approx(3e9 / report.peak().flops));
    CHECK(row["ratio_to_slow"] == 2.5);
    CHECK(row["ratio_to_fast"] == 0.5);
    CHECK_FALSE(row.contains("gb_per_s"));

    const Share share = share_of_first(report, "constructed", "flops", {"a", "b"}, {2, 3}, {10, 12}, 1);
    CHECK(share.time_for_work() == doctest::Approx(1.25));
    CHECK(report.rows().back()["name"] == "b / a");
    CHECK(report.rows().back()["flops_ratio"].get<double>() == doctest::Approx(1.2));
  }

  TEST_CASE("bench: an OpenBLAS that is not there is said, one that is asked for is an error") {
    const std::string nowhere[] = {"/nowhere/libopenblas.so.0"};
    CHECK(OpenBlas::find(nowhere) == nullptr);
    CHECK(contains(name_of(nullptr), "not installed"));
    CHECK(contains(error_of([&] { OpenBlas::load(nowhere[0]); }), "--openblas: /nowhere/libopenblas.so.0"));
    CHECK(contains(error_of([&] { OpenBlas::load("libz.so.1"); }), "is it OpenBLAS?"));
  }

  TEST_CASE("bench: OpenBLAS multiplies what our own product multiplies") {
    const std::unique_ptr<OpenBlas> blas = OpenBlas::find();
    if (!blas) {
      MESSAGE("skipped: OpenBLAS is not installed");
      return;
    }
    CHECK(contains(name_of(blas.get()), "OpenBLAS"));
    blas->set_threads(thread_count());
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const Tensor a = test::randn(ta ? Shape{5, 3} : Shape{3, 5}, 1, DType::f32);
        const Tensor b = test::randn(tb ? Shape{7, 5} : Shape{5, 7}, 2, DType::f32);
        const Tensor ours = Tensor::zeros({3, 7}, DType::f32, cpu()), theirs = Tensor::zeros({3, 7}, DType::f32, cpu());
        for (const bool add : {false, true}) {
          cpu().kernels().matmul({ours, add}, {}, {a, ta}, {b, tb}, {});
          blas->multiply(3, 7, 5, {a.data<float>(), ta, a.shape().last()}, {b.data<float>(), tb, b.shape().last()},
                         theirs.data<float>(), add);
        }
        CHECK(test::largest_difference(ours, theirs) < 1e-5);
      }
  }

  TEST_CASE("bench: a process answers each line with one, and sees what is added to its environment") {
    setenv("GRT_TEST_BENCH", "before", 1);
    Process counter =
        shell(R"(n=0; echo "{\"said\": \"$GRT_TEST_BENCH\"}"; while read x; do n=$((n+1)); echo "{\"n\": $n}"; done)",
              {"GRT_TEST_BENCH=after"});
    unsetenv("GRT_TEST_BENCH");
    CHECK(counter.read()["said"] == "after");
    CHECK(counter.ask()["n"] == 1);
    CHECK(counter.ask()["n"] == 2);
  }

  TEST_CASE("bench: a process that fails is named with its reason") {
    Process ended = shell("exit 3");
    CHECK(contains(error_of([&] { ended.ask(); }), "a shell ended early"));
    Process failing = shell(R"(echo '{"error": "no module"}')");
    CHECK(error_of([&] { failing.read(); }) == "a shell: no module");
    CHECK(contains(error_of([] { Process("nothing", {"/nowhere/python3"}, {}); }), "cannot start /nowhere/python3"));
  }
}

}  // namespace
}  // namespace grt
