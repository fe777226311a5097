// The CUDA device itself: memory, copies, and how it is chosen and opened.
#include "cuda/device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "core/cuda.h"
#include "core/files.h"
#include "core/json.h"
#include "cuda/staging.h"
#include "ops/kernels.h"
#include "tests/cuda/attention_cases.h"
#include "tests/cuda/modes.h"
#include "tests/support.h"
#include "train/device.h"

namespace grt {
namespace {

using test::contains;
using test::error_of;

DeviceConfig choice(std::string device, std::string dtype = "f32") {
  return {std::move(device), std::move(dtype), {}, false};
}

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

  TEST_CASE("what was to be copied to the device may change as soon as the call returns") {
    test::Emulated emulated({emu::Order::forward, emu::Streams::lazy});
    Device& device = emulated.device();
    std::vector<std::int32_t> ids(2 * cuda::Staging::kSlotBytes / sizeof(std::int32_t) + 5);
    std::iota(ids.begin(), ids.end(), 0);
    const std::vector<double> expected(ids.begin(), ids.end());
    const auto n = static_cast<std::int64_t>(ids.size());
    const Tensor there = Tensor::empty({n}, DType::i32, device);
    device.copy(there.raw(), ids.data(), there.bytes());
    std::fill(ids.begin(), ids.end(), -1);
    CHECK(test::values(there) == expected);

    // More copies on their way than there are slots.
    std::int32_t id = 0;
    for (; id < 3 * static_cast<std::int32_t>(cuda::Staging::kSlots); ++id)
      device.copy(there.range(id, {1}).raw(), &id, sizeof id);
    CHECK(test::values(there) == expected);
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

  TEST_CASE("a build that does not fit the GPU says so, with its compute capability and what was built") {
    const emu::Config before = emu::config;
    const std::string misfit =
        "cuda:0 (emulated, compute capability 9.0) does not work with this build, which is for "
        "the emulator: ";
    emu::config.launch_error = cudaErrorNoKernelImageForDevice;
    CHECK(error_of([] { cuda::open(0); }) ==
          misfit + "cuda: an elementwise kernel: no kernel image is available for execution on the device");
    emu::config = before;
    emu::config.idle = true;
    CHECK(error_of([] { cuda::open(0); }) == misfit + "a product of two small matrices is wrong");
    emu::config = before;
    emu::config.capability = 86;
    CHECK(cuda::open(0)->name() == "cuda:0");
    emu::config.capability = 75;
    const std::string old = "cuda:0 (emulated) is of compute capability 7.5, the CUDA backend needs 8.0 or later";
    CHECK(cuda::unavailable() == old);
    CHECK(contains(error_of([] { cuda::open(0); }), old));
    emu::config.devices = 2;
    CHECK(cuda::unavailable().empty());
    CHECK(error_of([] { cuda::open(0); }) == old);
    CHECK(cuda::open(1)->name() == "cuda:1");
    emu::config = before;
  }

  TEST_CASE("heads whose tiles are more than a block of the device may share are refused with both sizes") {
    const auto attend = [](int capability, std::int64_t width) {
      test::Emulated emulated({});
      emu::config.capability = capability;
      test::attend(emulated.device(), {1, 3, 1, width});
    };
    const std::string need = "bytes of a block's shared memory, this device has 101376";
    for (const int capability : {86, 89, 120}) {
      CHECK(error_of([&] { attend(capability, 256); }) == "cuda: attention heads of 256 columns need 102912 " + need);
      CHECK(error_of([&] { attend(capability, 192); }) == "cuda: attention heads of 192 columns need 103040 " + need);
      CHECK_NOTHROW(attend(capability, 128));
    }
    CHECK_NOTHROW(attend(80, 256));
  }

  TEST_CASE("--device and --dtype: what they may be, and why auto takes the CPU") {
    CHECK(error_of([] { choice("tpu").open(); }) == "--device: must be auto, cpu, cuda or cuda:N, not \"tpu\"");
    CHECK(contains(error_of([] { choice("cuda:x").open(); }), "not \"cuda:x\""));
    CHECK(error_of([] { choice("cuda", "f64").open(); }) ==
          "--dtype: f64 is computed on the CPU alone, not with --device cuda");
    const Library none("/nowhere/libgrt_cuda.so");
    CHECK(contains(error_of([] { choice("cuda:1").open(); }),
                   "--device cuda:1: libgrt_cuda.so: /nowhere/libgrt_cuda.so"));
    std::string why;
    CHECK(choice("auto").open(alone(), &why)->name().starts_with("cpu"));
    CHECK(contains(why, "/nowhere/libgrt_cuda.so: cannot open"));
    CHECK(choice("auto", "f64").open(alone(), &why)->name().starts_with("cpu"));
    CHECK(why == "f64 is computed on the CPU alone");
  }

  TEST_CASE("--no-graphs: a GPU then makes no graphs of what comes again") {
    const Library emulated(GRT_EMULATED_LIBRARY);
    DeviceConfig config = choice("cuda");
    CHECK(config.open()->uses_graphs());
    config.no_graphs = true;
    CHECK(!config.open()->uses_graphs());
    CHECK(!choice("cpu").open()->uses_graphs());
  }

  // The program, the library that it opens, and all that passes between them.
  TEST_CASE("train, eval and generate compute on the device that --device names") {
    const test::TempDir dir;
    const std::vector<std::string> emulated{"GRT_CUDA_LIBRARY=" GRT_EMULATED_LIBRARY};
    const std::string grt = test::fixture("oracle/grt").string(), tokens = grt + "/tokens.bin";
    const auto train = [&](const std::string& device, const std::string& out, const std::string& steps, bool resume,
                           const std::string& dtype = "f32") {
      std::vector<std::string> words{
          "--out", (dir / out).string(), "--data-train", tokens,    "--data-val", tokens, "--steps",
          steps,   "--device",           device,         "--dtype", dtype};
      const std::vector<std::string> fresh{"--model", grt + "/config.json", "--batch-size", "2", "--eval-batches", "2"};
      if (resume)
        words.push_back("--resume");
      else
        words.insert(words.end(), fresh.begin(), fresh.end());
      const test::Outcome run = test::run_tool("train", words, emulated);
      CHECK_MESSAGE(run.code == 0, run.err);
      return run.out;
    };
    CHECK(contains(train("cuda", "gpu", "2", false), "device: cuda:0, f32"));
    train("auto", "gpu", "4", true);
    CHECK(contains(train("cuda", "rounded", "2", false, "bf16"), "device: cuda:0, bf16"));
    CHECK(contains(train("cpu", "cpu", "2", false), "device: cpu ("));
    train("cpu", "cpu", "4", true);
    const auto loss = [&](const std::string& run, const std::string& device) {
      const test::Outcome o = test::run_tool("eval",
                                             {"--checkpoint", (dir / run).string(), "--data", tokens, "--device",
                                              device, "--json", (dir / "json").string()},
                                             emulated);
      REQUIRE_MESSAGE(o.code == 0, o.err);
      return read_json((dir / "json").string())["loss"].get<double>();
    };
    CHECK(std::abs(loss("gpu", "cuda:0") - loss("cpu", "cpu")) < 1e-4);
    const auto text = [&](const std::string& device, const std::string& weights) {
      return test::run_tool("generate",
                            {"--checkpoint", grt, "--prompt-ids", "1,2,3", "--tokens", "12", "--print-ids",
                             "--temperature", "0", "--device", device, "--weights", weights},
                            emulated);
    };
    CHECK(text("cuda", "f32").out == text("cpu", "f32").out);
    CHECK(text("cuda", "int8").out == text("cpu", "int8").out);
    CHECK(!text("cuda", "bf16").out.empty());
    CHECK(contains(test::run_tool("eval", {"--checkpoint", grt, "--data", tokens, "--device", "cuda:5"}, emulated).err,
                   "--device cuda:5: there is no cuda:5; the devices are cuda:0..0"));
  }

  TEST_CASE("bench times decoding and training on the device, and says what is the CPU's alone") {
    const test::TempDir dir;
    const std::vector<std::string> emulated{"GRT_CUDA_LIBRARY=" GRT_EMULATED_LIBRARY};
    const std::string model = (dir / "model.json").string(), file = (dir / "bench.json").string();
    write_file(
        model,
        Json{{"architecture", "grt"}, {"context_length", 8}, {"d_model", 16}, {"n_heads", 2}, {"n_recurrences", 2}}
            .dump());
    const auto bench = [&](std::vector<std::string> words) {
      words.insert(words.end(), {"--device", "cuda", "--rounds", "1", "--json", file});
      return test::run_tool("bench", words, emulated);
    };
    const test::Outcome decode = bench({"decode", "--model", model, "--tokens", "2"});
    REQUIRE_MESSAGE(decode.code == 0, decode.err);
    CHECK(contains(decode.out, "GB/s (copy)"));
    Json json = read_json(file);
    CHECK(json["device"] == "cuda:0");
    const Json& row = json["results"][1];
    for (const char* key : {"ms_per_token", "share_of_reading", "peak_device_bytes"}) CHECK(row[key] > 0);

    const test::Outcome train = bench({"train", "--model", model});
    REQUIRE_MESSAGE(train.code == 0, train.err);
    json = read_json(file);
    // Weights, gradients and moments, the products' workspace, and less than a process takes.
    CHECK(json["results"][1]["peak_resident_bytes"] > json["results"][1]["state_bytes"]);
    CHECK(json["results"][1]["peak_resident_bytes"] < 40 << 20);

    CHECK(contains(bench({"gemm", "--openblas", "libopenblas.so.0"}).err, "computes on the CPU alone, not with"));
    CHECK(contains(bench({"train", "--model", model, "--torch", "tuned"}).err,
                   "--torch: tuned is for --device cpu, not cuda:0"));
    CHECK(contains(bench({"decode", "--model", model, "--weights", "int8", "--dtype", "bf16"}).err,
                   "--weights: int8 goes with --dtype f32, not bf16"));
  }

  TEST_CASE("analyze finds on the device what it finds on the CPU") {
    const test::TempDir dir;
    const std::string grt = test::fixture("oracle/grt").string();
    const auto analysis = [&](const std::string& device) {
      const test::Outcome o =
          test::run_tool("analyze",
                         {"--checkpoint", grt, "--data", grt + "/tokens.bin", "--tokens", "30", "--depth-beyond",
                          "none", "--device", device, "--out", (dir / device).string()},
                         {"GRT_CUDA_LIBRARY=" GRT_EMULATED_LIBRARY});
      REQUIRE_MESSAGE(o.code == 0, o.err);
      return read_json((dir / device / "analysis.json").string()).flatten();
    };
    const Json expected = analysis("cpu"), got = analysis("cuda");
    CHECK(got.size() == expected.size());
    for (const auto& [key, value] : expected.items()) {
      if (!value.is_number()) continue;
      CAPTURE(key);
      CHECK(std::abs(got.at(key).get<double>() - value.get<double>()) <= 1e-3 * (1 + std::abs(value.get<double>())));
    }
  }
}

}  // namespace
}  // namespace grt
