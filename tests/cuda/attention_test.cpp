// What the cases of tests/cuda/kernel_cases.cpp do not say of attention: which bits do not change, and where products
// are bf16. On a GPU with GRT_ATTENTION=own; the accuracy in bf16 is cuDNN's to keep, too.
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/modes.h"

namespace grt {
namespace {

using emu::Order, emu::Streams;
using namespace test;

TEST_SUITE("cuda") {
  // 251..256: on both sides of a piece's end.
  TEST_CASE("a new token's attention has the same bits alone, with others before it, and in any batch") {
    Emulated emulated({Order::random, Streams::lazy});
    Device& device = emulated.device();
    constexpr std::int64_t kPast = 251, kFresh = 6, kWidth = 12, kHeads = 2, kBatch = 3;
    const Shape cache{kBatch, kHeads, kPast + kFresh, kWidth}, one{1, kHeads, kPast + kFresh, kWidth};
    const Tensor keys = random_on(device, cache, 1), values = random_on(device, cache, 2),
                 qkv = random_on(device, {kBatch, kFresh, 3 * kHeads * kWidth}, 3),
                 out = Tensor::empty({kBatch, kFresh, kHeads * kWidth}, DType::f32, device);
    device.kernels().attention_cached(out, keys, values, qkv, kPast, kHeads);
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t t = 0; t < kFresh; ++t) {
        const Tensor alone = Tensor::empty({1, 1, kHeads * kWidth}, DType::f32, device);
        device.kernels().attention_cached(alone, keys.range(b * one.numel(), one), values.range(b * one.numel(), one),
                                          qkv.range((b * kFresh + t) * qkv.dim(2), {1, 1, qkv.dim(2)}), kPast + t,
                                          kHeads);
        CHECK(test::values(alone) == test::values(out.rows(b * kFresh + t, 1)));
      }
  }

  TEST_CASE("attention in bf16 and its gradient are the CPU's to 2e-2 of a row, the log of the sum to 1e-2") {
    for (const Mode& mode : modes()) {
      CAPTURE(mode.name());
      Emulated emulated(mode, DType::bf16);
      for (const Heads& h : kShapes) {
        CAPTURE(h.time);
        CAPTURE(h.width);
        const auto got = attend(emulated.device(), h), expected = attend(cpu(), h);
        CHECK(row_error(got[0], expected[0], h.width) <= 2e-2);
        CHECK(row_error(got[2], expected[2], h.width) <= 2e-2);
        for (std::size_t i = 0; i < got[1].size(); ++i) CHECK(std::abs(got[1][i] - expected[1][i]) <= 1e-2);
      }
    }
  }

  TEST_CASE("a token's attention in bf16 has the same bits over a sequence and over a cache, in any batch and order") {
    for (const Heads& h : kShapes) {
      CAPTURE(h.width);
      Emulated emulated({Order::forward, Streams::eager}, DType::bf16);
      const std::vector<Values> whole = attend(emulated.device(), h);
      const std::int64_t past = h.time / 2;  // more than the 16 tokens that a kernel in f32 takes
      if (h.time > 20) CHECK(attend_cached(emulated.device(), h, past) == whole[0]);
      if (h.time > 1) CHECK((whole[0] != attend(Emulated({}).device(), h)[0]) == (h.width != 40));  // rounded?
      Emulated other({Order::random, Streams::lazy}, DType::bf16);
      CHECK(attend(other.device(), h) == whole);
    }
  }
}

}  // namespace
}  // namespace grt
