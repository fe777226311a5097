// What every binary says of the device that it takes.
#include <algorithm>

#include "core/json.h"
#include "tests/tools/analyze_run.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kNote = "note: --device auto takes the CPU: libgrt_cuda.so: /nowhere/libgrt_cuda.so";

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("that auto takes the CPU is said once, with the reason, on stderr; of cpu nothing is said") {
    const TempDir dir;
    const std::string grt = oracle("grt").string(), tokens = (oracle("grt") / "tokens.bin").string(),
                      model = (oracle("grt") / "config.json").string();
    const std::vector<std::pair<std::string, Words>> programs = {
        {"eval", {"--checkpoint", grt, "--data", tokens, "--json", (dir / "losses.json").string()}},
        {"generate", {"--checkpoint", grt, "--prompt-ids", "1,2", "--tokens", "2", "--print-ids"}},
        {"gradcheck", {"--checkpoint", grt, "--data", tokens, "--output", (dir / "gradients").string()}},
        {"analyze",
         {"--checkpoint", grt, "--data", tokens, "--out", (dir / "analysis").string(), "--overwrite", "--tokens", "30",
          "--depth-beyond", "none"}},
        {"bench", {"train", "--model", model, "--rounds", "1"}},
        {"train",
         {"--model", model, "--data-train", tokens, "--out", (dir / "run").string(), "--overwrite", "--steps", "1",
          "--batch-size", "2"}}};
    for (const auto& [program, words] : programs) {
      const auto run = [&, &program = program, &words = words](const char* device) {
        Words all = words;
        all.insert(all.end(), {"--device", device});
        const Outcome o = run_tool(program, all, {"GRT_CUDA_LIBRARY=/nowhere/libgrt_cuda.so"});
        CAPTURE(program);
        CHECK_MESSAGE(o.code == 0, o.err);
        CHECK_FALSE(contains(o.out, "note:"));
        return o.err;
      };
      const std::string said = run("auto");
      CAPTURE(program);
      CHECK_MESSAGE(said.starts_with(kNote), said);
      CHECK(std::count(said.begin(), said.end(), '\n') == 1);
      CHECK(run("cpu") == "");
    }
  }
}

}  // namespace grt::test
