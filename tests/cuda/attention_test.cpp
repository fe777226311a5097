// What the cases of tests/cuda/kernel_cases.cpp do not say of attention: which bits do not change.
#include <utility>
#include <vector>

#include "ops/kernels.h"
#include "tests/cuda/modes.h"
#include "tests/support.h"

namespace grt {
namespace {

Tensor on(Device& device, const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  device.copy(y.raw(), x.raw(), x.bytes());
  return y;
}

TEST_SUITE("cuda") {
  // 251..256: on both sides of a piece's end.
  TEST_CASE("a new token's attention has the same bits alone, with others before it, and in any batch") {
    test::Emulated emulated({emu::Order::random, emu::Streams::lazy});
    Device& device = emulated.device();
    constexpr std::int64_t kPast = 251, kFresh = 6, kWidth = 12, kHeads = 2, kBatch = 3;
    const Shape cache{kBatch, kHeads, kPast + kFresh, kWidth}, one{1, kHeads, kPast + kFresh, kWidth};
    const Tensor keys = on(device, test::randn(cache, 1, DType::f32)),
                 values = on(device, test::randn(cache, 2, DType::f32)),
                 qkv = on(device, test::randn({kBatch, kFresh, 3 * kHeads * kWidth}, 3, DType::f32)),
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
}

}  // namespace
}  // namespace grt
