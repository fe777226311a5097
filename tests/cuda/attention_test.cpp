// What the cases of tests/cuda/kernel_cases.cpp do not say of attention: which bits do not change, and where products
// are bf16.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/emu/sdpa.h"
#include "ops/kernels.h"
#include "tests/cuda/modes.h"
#include "tests/support.h"

namespace grt {
namespace {

using emu::Order, emu::Streams;
using Values = std::vector<double>;

Tensor on(Device& device, const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  device.copy(y.raw(), x.raw(), x.bytes());
  return y;
}
Tensor random_on(Device& device, Shape shape, std::uint32_t site) {
  return on(device, test::randn(shape, site, DType::f32));
}

struct Heads {
  std::int64_t batch, time;
  int heads;
  std::int64_t width;
  Shape out() const { return {batch, time, heads * width}; }
  Shape qkv() const { return {batch, time, 3 * heads * width}; }
  Shape lse() const { return {batch, heads, time}; }
};

// out, lse and the gradient, which is added to what the qkv were.
std::vector<Values> attend(Device& device, const Heads& h) {
  const Tensor qkv = random_on(device, h.qkv(), 1), dout = random_on(device, h.out(), 2), dqkv = qkv.clone(),
               out = Tensor::empty(h.out(), DType::f32, device), lse = Tensor::empty(h.lse(), DType::f32, device);
  device.kernels().attention(out, lse, qkv, h.heads);
  device.kernels().attention_backward({dqkv, true}, dout, qkv, out, lse, h.heads);
  return {test::values(out), test::values(lse), test::values(dqkv)};
}

// The tokens from `past` on, over a cache with room for one more.
Values attend_cached(Device& device, const Heads& h, std::int64_t past) {
  const Shape cache{h.batch, h.heads, h.time + 1, h.width}, all{h.batch, h.time, h.out().last()};
  const std::int64_t fresh = h.time - past, row = h.qkv().last();
  const Tensor qkv = random_on(device, h.qkv(), 1), keys = Tensor::zeros(cache, DType::f32, device),
               values = Tensor::zeros(cache, DType::f32, device), out = Tensor::empty(all, DType::f32, device);
  const auto run = [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t b = 0; n > 0 && b < h.batch; ++b) {
      const Shape one{1, h.heads, h.time + 1, h.width};
      device.kernels().attention_cached(out.range((b * h.time + begin) * all.last(), {1, n, all.last()}),
                                        keys.range(b * one.numel(), one), values.range(b * one.numel(), one),
                                        qkv.range((b * h.time + begin) * row, {1, n, row}), begin, h.heads);
    }
  };
  run(0, past);
  run(past, fresh);
  return test::values(out);
}

// The largest distance of two rows relative to the expected one's norm, or to the mean one if that is larger.
double row_error(const Values& got, const Values& expected, std::int64_t width) {
  REQUIRE(got.size() == expected.size());
  const auto columns = static_cast<std::size_t>(width);
  double all = 0, worst = 0;
  for (const double x : expected) all += x * x / static_cast<double>(expected.size() / columns);
  for (std::size_t begin = 0; begin < got.size(); begin += columns) {
    double distance = 0, norm = 0;
    for (std::size_t i = begin; i < begin + columns; ++i) {
      distance += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    worst = std::isnan(distance) ? HUGE_VAL : std::max(worst, std::sqrt(distance / std::max(norm, all)));
  }
  return worst;
}

// A library: the CPU's attention of what lies in emulated memory, of heads of up to 64 columns. `fault` is a factor of
// its gradient.
class CpuSdpa final : public cuda::Sdpa {
 public:
  CpuSdpa(cudaStream_t stream, float fault) : stream_(stream), fault_(fault) {}

  std::int64_t scratch(cuda::Pass, const cuda::SdpaShape& s, std::string* reason) override {
    if (s.width <= 64) return 6;
    *reason = "too wide";
    return -1;
  }
  void forward(const cuda::SdpaShape& s, void* out, float* lse, const void* qkv, void* scratch) override {
    emu::enqueue(stream_, [=] {
      const Attended a = attended(s, qkv);
      write(out, a.out);
      std::memcpy(lse, a.lse.raw(), a.lse.bytes());
      std::memset(scratch, 0, 6);
    });
  }
  void backward(const cuda::SdpaShape& s, void* dqkv, const void* dout, const void* qkv, const void* out,
                const float* lse, void* scratch) override {
    emu::enqueue(stream_, [=, fault = fault_] {
      const Attended a = attended(s, qkv);
      const Tensor d = Tensor::like(a.qkv), of_out = Tensor::like(a.out);
      read(a.out, out);
      read(of_out, dout);
      std::memcpy(a.lse.raw(), lse, a.lse.bytes());
      test::cpu().kernels().attention_backward({d}, of_out, a.qkv, a.out, a.lse, static_cast<int>(s.heads));
      test::cpu().kernels().multiply({d}, d, fault);
      write(dqkv, d);
      std::memset(scratch, 0, 6);
    });
  }

 private:
  struct Attended {
    Tensor qkv, out, lse;
  };
  static void read(const Tensor& to, const void* from) {
    for (std::int64_t i = 0; i < to.numel(); ++i)
      to.data<float>()[i] = __builtin_bit_cast(float, std::uint32_t{static_cast<const std::uint16_t*>(from)[i]} << 16);
  }
  static void write(void* to, const Tensor& from) {
    for (std::int64_t i = 0; i < from.numel(); ++i)
      static_cast<std::uint16_t*>(to)[i] =
          static_cast<std::uint16_t>((__builtin_bit_cast(std::uint32_t, from.data<float>()[i]) + 0x8000u) >> 16);
  }
  static Attended attended(const cuda::SdpaShape& s, const void* qkv) {
    const std::int64_t channels = s.heads * s.width;
    const Attended a{Tensor::empty({s.batch, s.time, 3 * channels}, DType::f32, test::cpu()),
                     Tensor::empty({s.batch, s.time, channels}, DType::f32, test::cpu()),
                     Tensor::empty({s.batch, s.heads, s.time}, DType::f32, test::cpu())};
    read(a.qkv, qkv);
    test::cpu().kernels().attention(a.out, a.lse, a.qkv, static_cast<int>(s.heads));
    return a;
  }

  cudaStream_t stream_;
  float fault_;
};

// Odd lengths, on both sides of tiles of 32 and 64 rows; the last has no kernel for tensor cores.
const std::vector<Heads> kShapes = {{2, 71, 2, 64}, {1, 129, 3, 32}, {2, 37, 1, 128}, {1, 1, 2, 64}, {1, 35, 2, 40}};

TEST_SUITE("cuda") {
  // 251..256: on both sides of a piece's end.
  TEST_CASE("a new token's attention has the same bits alone, with others before it, and in any batch") {
    test::Emulated emulated({Order::random, Streams::lazy});
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
    for (const test::Mode& mode : test::modes()) {
      CAPTURE(mode.name());
      test::Emulated emulated(mode, DType::bf16);
      for (const Heads& h : kShapes) {
        CAPTURE(h.time);
        CAPTURE(h.width);
        const auto got = attend(emulated.device(), h), expected = attend(test::cpu(), h);
        CHECK(row_error(got[0], expected[0], h.width) <= 2e-2);
        CHECK(row_error(got[2], expected[2], h.width) <= 2e-2);
        for (std::size_t i = 0; i < got[1].size(); ++i) CHECK(std::abs(got[1][i] - expected[1][i]) <= 1e-2);
        const bool rounded = h.width != 40;
        if (h.time > 1) CHECK((got[0] != attend(test::Emulated(mode).device(), h)[0]) == rounded);
      }
    }
  }

  TEST_CASE("a token's attention in bf16 has the same bits over a sequence and over a cache, in any batch and order") {
    for (const Heads& h : kShapes) {
      CAPTURE(h.width);
      test::Emulated emulated({Order::forward, Streams::eager}, DType::bf16);
      const std::vector<Values> whole = attend(emulated.device(), h);
      const std::int64_t past = h.time / 2;  // more than the 16 tokens that a kernel in f32 takes
      if (h.time > 20) CHECK(attend_cached(emulated.device(), h, past) == whole[0]);
      test::Emulated other({Order::random, Streams::lazy}, DType::bf16);
      CHECK(attend(other.device(), h) == whole);
    }
  }

  TEST_CASE("a library computes what it can, in bf16 alone, once it has agreed with the kernels in f32") {
    const auto attended = [](const Heads& h, float fault) {
      emu::sdpa = [=](cudaStream_t s) { return std::make_unique<CpuSdpa>(s, fault); };
      std::vector<Values> results = attend(test::Emulated({Order::forward, Streams::lazy}, DType::bf16).device(), h);
      emu::sdpa = nullptr;
      return results;
    };
    for (const Heads& h : {kShapes[0], kShapes[1], kShapes[2], kShapes[4]}) {
      CAPTURE(h.width);
      const auto got = attended(h, 1), expected = attend(test::cpu(), h);
      CHECK(row_error(got[0], expected[0], h.width) <= 2e-2);
      CHECK(row_error(got[2], expected[2], h.width) <= 2e-2);
      const bool by_library = h.width <= 64;
      CHECK((got != attend(test::Emulated({}, DType::bf16).device(), h)) == by_library);
    }
    CHECK(test::contains(test::error_of([&] { attended(kShapes[0], 1.1f); }),
                         "attention by cuDNN, heads of 64: the gradient differs from this backend's by 0.1 of it"));
    emu::sdpa = nullptr;
  }

  TEST_CASE("GRT_ATTENTION: own is always there, cudnn is not on the emulator, and there is nothing else") {
    const auto words = [](const char* wish) {
      setenv("GRT_ATTENTION", wish, 1);
      test::Emulated emulated({}, DType::bf16);
      attend(emulated.device(), kShapes[3]);
    };
    words("own");
    CHECK(test::error_of([&] { words("cudnn"); }) == "GRT_ATTENTION=cudnn: the emulator has no cuDNN");
    CHECK(test::error_of([&] { words("flash"); }) == "GRT_ATTENTION: must be own or cudnn, not \"flash\"");
    unsetenv("GRT_ATTENTION");
  }
}

}  // namespace
}  // namespace grt
