// Cross-entropy against the oracle, whose padding columns hold garbage, and against plain loops in double.
#include <bit>

#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

struct Result {
  Values losses, dlogits;
};

Result reference(const Values& logits, const std::vector<std::int32_t>& targets, std::size_t stride, std::size_t vocab,
                 double scale) {
  Result out{{}, Values(logits.size())};
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const double* x = logits.data() + r * stride;
    const std::size_t target = static_cast<std::size_t>(targets[r]);
    const double top = *std::max_element(x, x + vocab);
    double total = 0;
    for (std::size_t i = 0; i < vocab; ++i) total += std::exp(x[i] - top);
    out.losses.push_back(std::log(total) + top - x[target]);
    for (std::size_t i = 0; i < vocab; ++i)
      out.dlogits[r * stride + i] = scale * (std::exp(x[i] - top) / total - (i == target ? 1 : 0));
  }
  return out;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("cross_entropy agrees with the oracle") {
    const Json module = reference("cross_entropy_padded");
    const Tensor targets = integers({5}, module.at("targets").get<std::vector<std::int32_t>>());
    for (DType type : kReals) {
      const Tensor logits = tensor({5, 16}, numbers(module.at("logits")), type), dlogits = Tensor::like(logits);
      const Values losses = written({5}, type, [&](const Tensor& to) {
        kernels().cross_entropy(to, Into{dlogits}, logits, targets, 13, 1.0 / 5);
      });
      CHECK(relative_error(losses, numbers(module.at("loss_per_token"))) < 1e-5);
      CHECK(relative_error(values(dlogits), numbers(module.at("dlogits"))) < 1e-5);
    }
  }

  TEST_CASE("cross_entropy is what its formula says, and its gradient may take the logits' place") {
    struct Size {
      std::int64_t rows, vocab, stride;
    };
    for (DType type : kReals)
      for (const auto& [rows, vocab, stride] :
           {Size{1, 1, 1}, Size{7, 37, 48}, Size{3, 5003, 5056}, Size{19, 64, 64}}) {
        const Shape shape{rows, stride};
        Values in = values(randn(shape, 1, type));
        for (std::size_t i = 0; i < in.size(); ++i) in[i] *= 3;
        std::vector<std::int32_t> targets;
        for (std::int64_t r = 0; r < rows; ++r) targets.push_back(static_cast<std::int32_t>(r * 7919 % vocab));
        for (std::size_t i = 0; i < in.size(); ++i)
          if (static_cast<std::int64_t>(i) % stride >= vocab) in[i] = std::nan("");
        const Tensor logits = tensor(shape, in, type), ids = integers({rows}, targets);
        const Result expected = reference(values(logits), targets, static_cast<std::size_t>(stride),
                                          static_cast<std::size_t>(vocab), 0.125);
        const Tensor losses = Tensor::empty({rows}, type, cpu());
        check_into(expected.dlogits, shape, type,
                   [&](const Into& to) { kernels().cross_entropy(losses, to, logits, ids, vocab, 0.125); });
        CHECK(relative_error(values(losses), expected.losses) < tolerance(type));
        kernels().cross_entropy(losses, Into{logits}, logits, ids, vocab, 0.125);
        CHECK(relative_error(values(losses), expected.losses) < tolerance(type));
        CHECK(relative_error(values(logits), expected.dlogits) < tolerance(type));
      }
  }

  TEST_CASE("logits far apart give exact zeros and no NaN") {
    const Tensor logits = tensor({2, 4}, {1e30, -1e30, 0, 5, -1e30, -3e38, -1e30, 3e38}),
                 targets = integers({2}, {0, 1});
    const Tensor losses = Tensor::empty({2}, DType::f32, cpu());
    const Values d = written({2, 4}, DType::f32, [&](const Tensor& to) {
      kernels().cross_entropy(losses, Into{to}, logits, targets, 4, 1);
    });
    CHECK(d == Values{0, 0, 0, 0, 0, -1, 0, 1});
    CHECK(values(losses)[0] == 0);
    CHECK(values(losses)[1] > 3e38);
  }

  TEST_CASE("probabilities keep their relative accuracy down to e^-80") {
    Values in(8001);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = -static_cast<double>(i) / 100;
    const std::vector<std::int32_t> target = {0};
    const Tensor logits = tensor({1, 8001}, in), losses = Tensor::empty({1}, DType::f32, cpu());
    const Result expected = reference(values(logits), target, 8001, 8001, 1);
    const Values d = written({1, 8001}, DType::f32, [&](const Tensor& to) {
      kernels().cross_entropy(losses, Into{to}, logits, integers({1}, target), 8001, 1);
    });
    double worst = 0;
    for (std::size_t i = 1; i < d.size(); ++i) worst = std::max(worst, std::abs(d[i] / expected.dlogits[i] - 1));
    CHECK(worst < 1e-6);
  }

  TEST_CASE("the loss of logits of which one is a NaN is one, whatever its bits") {
    for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
      CAPTURE(bits);
      const Tensor logits = tensor({1, 35}, Values(35, 0.5)), loss = tensor({1}, {0});
      logits.data<float>()[1] = std::bit_cast<float>(bits);
      kernels().cross_entropy(loss, {}, logits, integers({1}, {3}), 35, 1);
      CHECK(std::isnan(values(loss)[0]));
    }
  }

  TEST_CASE("cross_entropy does not depend on the number of threads") {
    const Tensor logits = randn({37, 1030}, 2, DType::f32), targets = integers({37}, std::vector<std::int32_t>(37, 5));
    check_thread_independent([&] {
      const Tensor losses = Tensor::empty({37}, DType::f32, cpu()), dlogits = Tensor::like(logits);
      kernels().cross_entropy(losses, Into{dlogits}, logits, targets, 1025, 1);
      return std::vector{losses, dlogits};
    });
  }
}

}  // namespace grt
