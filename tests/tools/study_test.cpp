// tools/study.py over the built binaries: a comparison in small, its table, and going on after an interruption.

#include <chrono>
#include <csignal>
#include <thread>

#include "core/files.h"
#include "core/json.h"
#include "tests/support.h"

namespace grt::test {
namespace {

using Words = std::vector<std::string>;

std::string script() { return (fs::path(GRT_TEST_DIR).parent_path() / "tools/study.py").string(); }

// Text enough for a window of the nano models: 257 tokens and some more.
std::string tokens_in(const TempDir& dir) {
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 1200; ++i) ids.push_back(static_cast<std::uint16_t>(97 + i * i % 23));
  write_file(dir / "ids.bin", {reinterpret_cast<const char*>(ids.data()), ids.size() * 2});
  return (dir / "ids.bin").string();
}

Words study(const TempDir& dir, const Words& more = {}) {
  const std::string ids = tokens_in(dir);
  Words words = {"--scale",      "nano",      "--comparison", "extrapolate",
                 "--data-train", ids,         "--data-val",   ids,
                 "--steps",      "2",         "--threads",    "1",
                 "--bin",        GRT_BIN_DIR, "--out",        (dir / "out").string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("a study trains every case with every seed, and its table holds what the runs' evaluations say") {
    const TempDir dir;
    const Outcome first = run_tool(script(), study(dir));
    INFO(first.err);
    REQUIRE(first.code == 0);
    const Json results = read_json((dir / "out/nano/extrapolate.json").string());
    REQUIRE(results["rows"].size() == 3);  // dense, grt, poisson
    for (const Json& row : results["rows"]) {
      REQUIRE(row["runs"].size() == 2);
      CHECK(row["runs"][0]["loss"] != row["runs"][1]["loss"]);  // seeds differ
      for (int seed = 1; seed <= 2; ++seed) {
        const fs::path run = dir / fmt::format("out/nano/{}-steps2-seed{}", row["preset"].get<std::string>(), seed);
        const Json evaluation = read_json((run / "eval.json").string());
        CHECK(row["runs"][seed - 1]["loss"] == evaluation["loss"]);
        CHECK(contains(first.out, fmt::format("{:.4f}", evaluation["loss"].get<double>())));
      }
    }
    for (const char* depth : {"8", "10", "12"}) CHECK(results["rows"][1]["runs"][0]["loss_by_depth"].contains(depth));
    CHECK(contains(read_file(dir / "out/nano/extrapolate.svg"), "</svg>"));
    CHECK(contains(read_file(dir / "out/nano/extrapolate.md"), "| grt | 1+1×6+1 | 746,752 |"));

    {  // Again, it trains nothing and says the same.
      const auto log = fs::file_size(dir / "out/nano/train.log");
      const Outcome again = run_tool(script(), study(dir));
      CHECK(again.code == 0);
      CHECK(fs::file_size(dir / "out/nano/train.log") == log);
      CHECK(read_json((dir / "out/nano/extrapolate.json").string()) == results);
    }
    {  // A run that has lost its result goes on from its checkpoint.
      fs::remove(dir / "out/nano/grt-nano-steps2-seed1/result.json");
      CHECK(run_tool(script(), study(dir)).code == 0);
      CHECK(contains(read_file(dir / "out/nano/train.log"), "2 steps are finished"));
      const Json after = read_json((dir / "out/nano/extrapolate.json").string());
      CHECK(after["rows"][1]["runs"][0]["loss"] == results["rows"][1]["runs"][0]["loss"]);
    }
    {  // Other steps or data in the same place are refused.
      const Outcome other = run_tool(script(), study(dir, {"--steps", "3"}));
      CHECK(other.code != 0);
      CHECK(contains(other.err, "recipe.json"));
      CHECK(contains(other.err, "steps 2, not 3"));
    }
  }

  TEST_CASE("a study that is interrupted says so in one line, saves, and goes on to the same end") {
    const TempDir dir, other;
    const Words words = study(dir, {"--steps", "3", "--seeds", "1"});
    Running interrupted(script(), words);
    const fs::path log = dir / "out/nano/dense-nano-steps3-seed1/train.jsonl";
    for (int wait = 0; wait < 60000 && (!fs::exists(log) || fs::file_size(log) == 0); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    interrupted.signal(SIGTERM);
    const Outcome stopped = interrupted.wait();
    CHECK(stopped.code == 128 + SIGTERM);
    CHECK(stopped.err == "study: interrupted; the same command goes on\n");
    CHECK(run_tool(script(), words).code == 0);
    CHECK(run_tool(script(), study(other, {"--steps", "3", "--seeds", "1"})).code == 0);
    const auto losses = [](const TempDir& at) {
      std::vector<double> all;
      const Json results = read_json((at / "out/nano/extrapolate.json").string());
      for (const Json& row : results["rows"]) all.push_back(row["runs"][0]["loss"].get<double>());
      return all;
    };
    CHECK(losses(dir) == losses(other));
  }

  TEST_CASE("a study says in one line what is wrong with its flags") {
    const TempDir dir;
    const auto error = [&](const Words& more) {
      const Outcome outcome = run_tool(script(), study(dir, more));
      CHECK(outcome.code != 0);
      return outcome.err;
    };
    CHECK(contains(error({"--bin", "/nowhere"}), "--bin: /nowhere/"));
    CHECK(contains(error({"--seeds", "0"}), "--seeds: must be 1 or more, not 0"));
    CHECK(contains(error({"--scale", "large", "--comparison", "ablation"}), "not at large"));
    CHECK(contains(error({"--data-train", "/nowhere.bin", "--out", (dir / "new").string()}),
                   "--data-train: /nowhere.bin: there is no such file"));
    CHECK_FALSE(fs::exists(dir / "new/nano/recipe.json"));
    CHECK(contains(error({"--comparison", "budget", "--steps", "1", "--out", (dir / "few").string()}), "--steps 1"));
    CHECK(contains(error({"--device", "cpu:7", "--out", (dir / "device").string()}), "--device"));
  }
}

}  // namespace grt::test
