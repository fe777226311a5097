// How work becomes a graph, on a device that only keeps the books of it (tests/cuda/graphs_test.cpp has real ones).
#include "core/graphs.h"

#include <cstdlib>
#include <new>
#include <stdexcept>

#include "tests/support.h"

namespace grt::test {
namespace {

struct EmptyGraph final : Graph {
  explicit EmptyGraph(int& launched) : launched(launched) {}
  void launch() override { ++launched; }
  int& launched;
};

struct BookDevice final : Device {
  ~BookDevice() override { release_idle(); }
  std::string name() const override { return "book"; }
  Kernels& kernels() override { return cpu().kernels(); }
  void sync() override {}
  void zero(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void* system_alloc(std::size_t bytes) override { return std::malloc(bytes); }
  void system_free(void* p, std::size_t) noexcept override { std::free(p); }
  bool has_graphs() const override { return true; }
  void begin_graph() override { keeping = true; }
  std::unique_ptr<Graph> end_graph() override {
    keeping = false;
    if (broken) fail("book: broken off");
    return std::make_unique<EmptyGraph>(launched);
  }
  bool keeping = false, broken = false;
  int launched = 0;
};

TEST_SUITE("core") {
  TEST_CASE("work is done once, made a graph, and launched from then on") {
    BookDevice device;
    Graphs graphs(device);
    int calls = 0;
    for (int i = 0; i < 4; ++i) CHECK(graphs.run(1, [&] { calls += device.keeping ? 10 : 1; }) == (i < 2));
    CHECK(calls == 11);
    CHECK(device.launched == 3);
  }

  TEST_CASE("whatever ends work that is being made a graph, the device keeps no more") {
    BookDevice device;
    Graphs graphs(device);
    const auto run = [&](auto&& thrown) {
      graphs.run(1, [&] {
        if (device.keeping) throw thrown;
      });
    };
    run(0);  // as it comes
    for (const bool broken : {false, true}) {
      device.broken = broken;
      CHECK_THROWS_AS(run(std::bad_alloc()), std::bad_alloc);
      CHECK_FALSE(device.keeping);
      CHECK_THROWS_AS(run(std::out_of_range("x")), std::out_of_range);
      CHECK_FALSE(device.keeping);
      CHECK(error_of([&] { run(Error("met the host")); }) ==
            "book: work that was done before cannot be made a graph: met the host (--no-graphs does it as it comes)");
      CHECK_FALSE(device.keeping);
    }
    CHECK(device.launched == 0);
  }
}

}  // namespace
}  // namespace grt::test
