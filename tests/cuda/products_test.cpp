// Products of bf16 factors and with packed weights: what is kept of held weights, and what rows have in common.
#include <algorithm>
#include <cmath>

#include "cuda/emu/emu.h"
#include "ops/hold.h"
#include "ops/ops.h"
#include "tests/cuda/modes.h"
#include "tests/train/oracle_models.h"
#include "train/generate.h"

namespace grt {
namespace {

using Values = std::vector<double>;

Tensor randn(Shape shape, std::uint32_t site, Device& device) {
  const Tensor here = test::randn(shape, site, DType::f32), there = Tensor::empty(shape, DType::f32, device);
  device.copy(there.raw(), here.raw(), here.bytes());
  return there;
}

// All that products make of x (4, 9) and a weight (7, 20) of which columns [5, 14) are used.
std::vector<Values> products(const Tensor& x, const Tensor& w) {
  Device& device = x.device();
  const Tensor y = Tensor::empty({4, 7}, DType::f32, device), dx = Tensor::like(x),
               dw = Tensor::zeros({7, 20}, DType::f32, device);
  const Tensor wide = Tensor::empty({4, 20}, DType::f32, device);
  Kernels& k = device.kernels();
  k.matmul({y}, {}, {x}, {w, true, {5, 9}}, {});
  k.linear_backward({dx}, {dw, true}, y, x, {w, false, {5, 9}});
  k.matmul({wide}, {}, {y}, {w}, {});
  return {test::values(y), test::values(dx), test::values(dw), test::values(wide)};
}

TEST_SUITE("cuda") {
  TEST_CASE("products with held weights are those of others, and later values are seen after the hold") {
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode, DType::bf16);
      Device& device = emulated.device();
      const Tensor weights = randn({3 * 7 * 20}, 1, device), w = weights.range(140, {7, 20}),
                   x = randn({4, 9}, 2, device);
      for (int step = 0; step < 3; ++step) {
        device.kernels().multiply({weights}, weights, 1.3f);
        const std::vector<Values> expected = products(x, w.clone());
        {
          const Hold hold(weights);
          CHECK(products(x, w) == expected);
          CHECK(products(x, w) == expected);
        }
        CHECK(products(x, w) == expected);
      }
    }
  }

  TEST_CASE("another hold takes the place of one, and of the weights of a model that is gone nothing stays") {
    test::Emulated emulated({.keep_blocks = true}, DType::bf16);
    Device& device = emulated.device();
    const Tensor x = randn({4, 9}, 2, device);
    const Tensor first = randn({7, 20}, 1, device), second = randn({7, 20}, 3, device);
    const std::vector<Values> expected = products(x, first), others = products(x, second);
    const Hold outer(first);
    CHECK(products(x, first) == expected);
    const Hold inner(second);
    CHECK(products(x, second) == others);
    device.kernels().copy({first}, second);
    CHECK(products(x, first) == others);
  }

  TEST_CASE("a weight is rounded once in a hold, a gradient once for both its products, and memory is taken once") {
    test::Emulated emulated({.keep_blocks = true}, DType::bf16);
    Device& device = emulated.device();
    Kernels& k = device.kernels();
    const Tensor x = randn({4, 9}, 1, device), w = randn({7, 9}, 2, device),
                 y = Tensor::empty({4, 7}, DType::f32, device);
    const Tensor dx = Tensor::like(x), dw = Tensor::like(w);
    const auto launches = [&](auto&& work) {
      device.sync();
      const std::uint64_t before = emu::counters.launches;
      work();
      device.sync();
      return emu::counters.launches - before;
    };
    const auto forward = [&] { k.matmul({y}, {}, {x}, {w, true}, {}); };
    const auto backward = [&] { k.linear_backward({dx}, {dw}, y, x, {w}); };
    CHECK(launches(forward) == 2);
    CHECK(launches(backward) == 3);  // y, w, x
    const auto step = [&] {
      const Hold hold(w);
      CHECK(launches(forward) == 2);
      CHECK(launches(forward) == 1);
      CHECK(launches(backward) == 2);
    };
    step();
    const std::size_t calls = device.system_calls();
    step();
    CHECK(device.system_calls() == calls);
  }

  TEST_CASE(
      "a product that cuBLASLt does only without a bias or workspace is the same; one that it does not is named") {
    const auto biased = [](emu::Algorithms algorithms, std::uint64_t* launches) {
      test::Emulated emulated({emu::Order::reverse, emu::Streams::lazy});
      Device& device = emulated.device();
      const Tensor x = randn({4, 9}, 1, device), w = randn({7, 9}, 2, device), b = randn({7}, 3, device),
                   y = randn({4, 20}, 4, device);
      const std::uint64_t before = emu::counters.launches;
      emu::config.algorithms = algorithms;
      device.kernels().matmul({y, true}, {5, 7}, {x}, {w, true}, b);
      device.kernels().matmul({y}, {12, 7}, {x}, {w, true}, {});
      device.sync();
      *launches = emu::counters.launches - before;
      return test::values(y);
    };
    std::uint64_t launches = 0;
    const Values expected = biased(emu::Algorithms::all, &launches);
    CHECK(launches == 0);
    for (const auto algorithms : {emu::Algorithms::without_bias, emu::Algorithms::without_workspace}) {
      const Values got = biased(algorithms, &launches);
      CHECK(launches == 1);
      REQUIRE(got.size() == expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-5);
    }
    CHECK(test::error_of([&] { biased(emu::Algorithms::none, &launches); }) ==
          "cuda: cuBLASLt has no algorithm for a product: (4, 9) f32 of rows 9 apart by (9, 7) f32, transposed, of "
          "rows 9 apart, into rows 20 apart");
  }

  TEST_CASE("text is that of weights rounded at each token, but each is rounded once") {
    test::Emulated emulated({.keep_blocks = true}, DType::bf16);
    const auto model = load_model(test::oracle("dense"), emulated.device());
    const std::vector<int> prompt{5, 3, 8, 1};
    // A new token's launches, once the graph of a step is made; and the text.
    const auto measured = [&](auto&& text_of) {
      std::uint64_t launches[2] = {};
      std::vector<int> text;
      for (const int more : {0, 1}) {
        const std::uint64_t before = emu::counters.launches;
        text = text_of(6 + more);
        emulated.device().sync();
        launches[more] = emu::counters.launches - before;
      }
      return std::pair(launches[1] - launches[0], text);
    };
    const auto [each_time, expected] = measured([&](int tokens) {
      Decoder decoder(*model, {}, 16);
      std::vector<int> text;
      for (std::vector<double> logits = decoder.start(prompt); std::ssize(text) < tokens;) {
        text.push_back(choose(logits, {.temperature = 0}, 0, 4 + std::ssize(text)).id);
        if (std::ssize(text) < tokens) logits = decoder.next(std::span(&text.back(), 1));
      }
      return text;
    });
    const auto [once, text] = measured([&](int tokens) {
      std::vector<int> all;
      generate(*model, prompt, {.tokens = tokens, .sampling = {.temperature = 0}},
               [&](int, const NewToken& token) { all.push_back(token.id); });
      return all;
    });
    CHECK(text == expected);
    CHECK(each_time - once == 4 * 3 + 1);  // of three blocks and the head
    CHECK(hold_rounded(*load_model(test::oracle("dense"), test::cpu())) == nullptr);
  }

  TEST_CASE("a row of a product with packed weights has the same bits beside up to 15 others") {
    test::Emulated emulated({});
    Device& device = emulated.device();
    for (const DType type : {DType::packed_f32, DType::packed_bf16, DType::packed_int8}) {
      CAPTURE(name_of(type));
      const Tensor x = randn({16, 150}, 1, device), w = Tensor::empty({37, 150}, type, device);
      device.kernels().pack(w, randn({37, 150}, 2, device));
      const auto rows = [&](std::int64_t begin, std::int64_t count) {
        return test::values(linear(x.rows(begin, count), w).value());
      };
      const Values all = rows(0, 16);
      for (const std::int64_t count : {1, 2, 3, 5, 8, 11}) {
        const Values some = rows(16 - count, count);
        CHECK(std::equal(some.begin(), some.end(), all.end() - count * 37));
      }
    }
  }

  TEST_CASE("packed values have the bits that the CPU gives them") {
    test::Emulated emulated({});
    for (const DType type : {DType::packed_f32, DType::packed_bf16, DType::packed_int8}) {
      CAPTURE(name_of(type));
      const auto values = [type](Device& device) {
        const Tensor w = randn({6, 70}, 4, device), p = Tensor::empty(w.shape(), type, device);
        device.kernels().multiply({w.range(70, {40})}, w.range(70, {40}), 0);  // runs of zeros, whose scale is 0
        device.kernels().multiply({w.range(140, {70})}, w.range(140, {70}), 1e-36f);
        device.kernels().pack(p, w);
        const std::vector<std::int32_t> ids{0, 1, 2, 3, 4, 5};
        const Tensor rows = Tensor::from<std::int32_t>({1, 6}, ids, device);
        return test::values(embedding(rows, p, Tensor::zeros({6, 70}, DType::f32, device)).value());
      };
      CHECK(values(emulated.device()) == values(test::cpu()));
    }
  }
}

}  // namespace
}  // namespace grt
