// Attention by a library, as cuDNN is one: who computes what, and that it is not trusted unseen.
#include <cstdlib>
#include <cstring>

#include "cuda/emu/sdpa.h"
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/modes.h"

namespace grt {
namespace {

using emu::Order, emu::Streams;
using namespace test;

// A library: the CPU's attention of what lies in emulated memory, of heads of up to `widest` columns. `fault` is a
// factor of its gradient.
class CpuSdpa final : public cuda::Sdpa {
 public:
  CpuSdpa(cudaStream_t stream, float fault, std::int64_t widest = 64)
      : stream_(stream), fault_(fault), widest_(widest) {}

  std::int64_t scratch(cuda::Pass, const cuda::SdpaShape& s, std::string* reason) override {
    if (s.width <= widest_) return 6;
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
      cpu().kernels().attention_backward({d}, of_out, a.qkv, a.out, a.lse, static_cast<int>(s.heads));
      cpu().kernels().multiply({d}, d, fault);
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
    const Attended a{Tensor::empty({s.batch, s.time, 3 * channels}, DType::f32, cpu()),
                     Tensor::empty({s.batch, s.time, channels}, DType::f32, cpu()),
                     Tensor::empty({s.batch, s.heads, s.time}, DType::f32, cpu())};
    read(a.qkv, qkv);
    cpu().kernels().attention(a.out, a.lse, a.qkv, static_cast<int>(s.heads));
    return a;
  }

  cudaStream_t stream_;
  float fault_;
  std::int64_t widest_;
};

TEST_SUITE("cuda") {
  TEST_CASE("a library computes what it can, in bf16 alone, once it has agreed with the kernels in f32") {
    const auto attended = [](const Heads& h, float fault) {
      emu::sdpa = [=](cudaStream_t s) { return std::make_unique<CpuSdpa>(s, fault); };
      std::vector<Values> results = attend(Emulated({Order::forward, Streams::lazy}, DType::bf16).device(), h);
      emu::sdpa = nullptr;
      return results;
    };
    for (const Heads& h : {kShapes[0], kShapes[1], kShapes[2], kShapes[4]}) {
      CAPTURE(h.width);
      const auto got = attended(h, 1), expected = attend(cpu(), h);
      CHECK(row_error(got[0], expected[0], h.width) <= 2e-2);
      CHECK(row_error(got[2], expected[2], h.width) <= 2e-2);
      const bool by_library = h.width <= 64;
      CHECK((got != attend(Emulated({}, DType::bf16).device(), h)) == by_library);
    }
    CHECK(contains(error_of([&] { attended(kShapes[0], 1.1f); }),
                   "attention by cuDNN, heads of 64: the gradient differs from this backend's by 0.1 of it"));
    emu::sdpa = nullptr;
  }

  TEST_CASE("a library that has not agreed computes nothing later either, and products stay bf16") {
    const auto refused_twice = [](float fault, const Heads& h, const std::string& reason) {
      emu::sdpa = [=](cudaStream_t s) { return std::make_unique<CpuSdpa>(s, fault, h.width); };
      Emulated emulated({Order::forward, Streams::lazy}, DType::bf16);
      emu::config.capability = 86;
      for (int i = 0; i < 2; ++i) {
        CHECK(contains(error_of([&] { attend(emulated.device(), h); }), reason));
        CHECK(emulated.device().kernels().keeps() == Keeps::rounded);
      }
      emu::sdpa = nullptr;
    };
    refused_twice(1.1f, kShapes[0], "attention by cuDNN, heads of 64: the gradient differs");
    refused_twice(1, {1, 3, 1, 192}, "attention heads of 192 columns need");  // the kernels in f32 do
  }

  TEST_CASE("GRT_ATTENTION: own is always there, cudnn is not on the emulator, and there is nothing else") {
    const auto words = [](const char* wish) {
      setenv("GRT_ATTENTION", wish, 1);
      Emulated emulated({}, DType::bf16);
      attend(emulated.device(), kShapes[3]);
    };
    words("own");
    CHECK(error_of([&] { words("cudnn"); }) == "GRT_ATTENTION=cudnn: the emulator has no cuDNN");
    CHECK(error_of([&] { words("flash"); }) == "GRT_ATTENTION: must be own or cudnn, not \"flash\"");
    unsetenv("GRT_ATTENTION");
  }
}

}  // namespace
}  // namespace grt
