// The CUDA device itself: memory, copies, and how it is chosen and opened.
#include "cuda/device.h"

#include <cstdlib>
#include <utility>

#include "core/cuda.h"
#include "ops/kernels.h"
#include "tests/cuda/modes.h"
#include "tests/support.h"
#include "train/device.h"

namespace grt {
namespace {

using test::contains;
using test::error_of;

DeviceConfig choice(std::string device, std::string dtype = "f32") { return {std::move(device), std::move(dtype), {}}; }

// Sets GRT_CUDA_LIBRARY while it lives.
class Library {
 public:
  explicit Library(const char* path) { setenv("GRT_CUDA_LIBRARY", path, 1); }
  ~Library() { unsetenv("GRT_CUDA_LIBRARY"); }
};

TEST_SUITE("cuda") {
  TEST_CASE("blocks are kept to be taken again, or every one is an allocation of its own size") {
    test::Emulated kept({.keep_blocks = true});
    { const Tensor t = Tensor::empty({1000}, DType::f32, kept.device()); }
    const std::size_t calls = kept.device().system_calls();
    { const Tensor t = Tensor::empty({1000}, DType::f32, kept.device()); }
    CHECK(kept.device().system_calls() == calls);

    test::Emulated apart({.keep_blocks = false});
    const std::size_t before = apart.device().reserved();
    {
      const Tensor t = Tensor::empty({7}, DType::f32, apart.device());
      CHECK(apart.device().reserved() == before + 28);
    }
    CHECK(apart.device().reserved() == before);
  }

  TEST_CASE("what is copied to the device and back is the same, and zeros are zeros") {
    test::Emulated emulated({emu::Order::forward, emu::Streams::lazy});
    const Tensor here = test::randn({3, 5}, 1, DType::f32);
    const Tensor there = Tensor::empty({3, 5}, DType::f32, emulated.device());
    emulated.device().copy(there.raw(), here.raw(), here.bytes());
    CHECK(test::values(there.clone()) == test::values(here));
    CHECK(test::values(Tensor::zeros({3}, DType::f32, emulated.device())) == std::vector<double>(3));
    CHECK(emulated.device().name() == "cuda:0");
  }

  TEST_CASE("f64 is refused by name") {
    test::Emulated emulated({});
    const Tensor x = Tensor::zeros({3}, DType::f64, emulated.device());
    CHECK(error_of([&] { emulated.device().kernels().copy({x}, x); }) == "the CUDA backend computes in f32, not f64");
  }

  TEST_CASE("a device that is not there is refused by name") {
    CHECK(error_of([] { cuda::open(3); }) == "there is no cuda:3; the devices are cuda:0..0");
    emu::config.devices = 0;
    CHECK(cuda::unavailable() == "the NVIDIA driver sees no device");
    CHECK(error_of([] { cuda::open(0); }) == "no CUDA device can be opened: the NVIDIA driver sees no device");
    emu::config.devices = 1;
  }

  TEST_CASE("--device and --dtype: what they may be, and why auto takes the CPU") {
    CHECK(error_of([] { choice("tpu").open(); }) == "--device: must be auto, cpu, cuda or cuda:N, not \"tpu\"");
    CHECK(contains(error_of([] { choice("cuda:x").open(); }), "not \"cuda:x\""));
    CHECK(error_of([] { choice("cuda", "f64").open(); }) ==
          "--dtype: f64 is computed on the CPU alone, not with --device cuda");
    const Library none("/nowhere/libgrt_cuda.so");
    CHECK(contains(error_of([] { choice("cuda:1").open(); }),
                   "--device cuda:1: the CUDA backend cannot be loaded: /nowhere/libgrt_cuda.so"));
    std::string why;
    CHECK(choice("auto").open(&why)->name() == "cpu");
    CHECK(contains(why, "the CUDA backend cannot be loaded"));
    CHECK(choice("auto", "f64").open(&why)->name() == "cpu");
    CHECK(why == "f64 is computed there alone");
  }
}

}  // namespace
}  // namespace grt
