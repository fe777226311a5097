// The analyze binary: the files it writes and what it says of input that it cannot use.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "core/files.h"
#include "core/json.h"
#include "tests/support.h"
#include "tests/tools/analyze_run.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"

namespace grt::test {

TEST_SUITE("tools") {
  TEST_CASE("analyze: a rival with weights that are no numbers is refused by name") {
    const TempDir dir;
    fs::copy(oracle("grt"), dir / "rival", fs::copy_options::recursive);
    std::string weights = read_file(dir / "rival/model.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, weights.data(), sizeof header);
    weights.replace(8 + header, 4, std::string("\x00\x00\xc0\x7f", 4));  // the first value becomes NaN
    write_file(dir / "rival/model.safetensors", weights);
    const auto error = [&](const fs::path& rival) {
      const Outcome outcome = run_tool("analyze", arguments(oracle("grt"), oracle("grt") / "tokens.bin", dir / "out",
                                                            {"--compare", rival.string()}));
      CHECK(outcome.code != 0);
      CHECK_FALSE(fs::exists(dir / "out"));
      return outcome.err;
    };
    CHECK(contains(error(dir / "rival"), "the first bad weight"));
    CHECK(contains(error(dir / "rival"), (dir / "rival").string()));
  }

  TEST_CASE("analyze: rivals of one name are told apart by their paths") {
    const TempDir dir;
    fs::create_directories(dir / "a");
    fs::copy(oracle("grt"), dir / "a/grt", fs::copy_options::recursive);
    const Outcome outcome = run_tool("analyze", arguments(oracle("grt"), oracle("grt") / "tokens.bin", dir / "out",
                                                          {"--compare", (dir / "a/grt").string()}));
    REQUIRE(outcome.code == 0);
    const Json curves = read_json((dir / "out/analysis.json").string())["early_exit"];
    CHECK(curves[0]["name"] == oracle("grt").string());
    CHECK(curves[1]["name"] == (dir / "a/grt").string());
    for (std::size_t i = 0; i < curves[1]["points"].size(); ++i)
      CHECK(curves[0]["points"][i]["loss"] == curves[1]["points"][i]["loss"]);
  }

  TEST_CASE("analyze: interrupted, it leaves nothing") {
    const TempDir dir;
    std::string ids(400000, '\0');
    for (std::size_t i = 0; i < ids.size(); i += 2) ids[i] = static_cast<char>(i / 2 % 90);
    write_file(dir / "ids.bin", ids);
    Running running("analyze", arguments(oracle("grt"), dir / "ids.bin", dir / "out", {"--tokens", "190000"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    running.signal(SIGTERM);
    CHECK(running.wait().code == 128 + SIGTERM);
    std::set<std::string> left;
    for (const auto& entry : fs::directory_iterator(dir.path)) left.insert(entry.path().filename().string());
    CHECK(left == std::set<std::string>{"ids.bin"});
  }

  TEST_CASE("analyze: the tables hold what analysis.json holds, and the summary the losses") {
    const TempDir dir;
    const Outcome outcome = run_tool("analyze", arguments(oracle("grt"), oracle("grt") / "tokens.bin", dir / "out",
                                                          {"--twin", oracle("poisson").string()}));
    REQUIRE(outcome.code == 0);
    const Json a = read_json((dir / "out/analysis.json").string());
    const auto lines = [&](const char* name) {
      const std::string text = read_file(dir / "out" / name);
      return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    };
    CHECK(lines("exits.csv") == 1 + a["exits"].size());
    CHECK(lines("gates.csv") == 1 + 3);
    CHECK(lines("dynamics.csv") == 1 + 3);
    CHECK(lines("difficulty.csv") == 1 + 10);
    CHECK(lines("cka.csv") == 1 + 4 * 4 + 4 * 5);
    CHECK(lines("heads.csv") == 1 + 3 * (2 + 2 * 3 + 1));
    CHECK(lines("early_exit.csv") == 1 + 4 + 4);
    CHECK(read_file(dir / "out/exits.csv").starts_with("depth,loss,kl_to_final,reduction,share,trained,flops"));
    CHECK(contains(read_file(dir / "out/exits.csv"), "\n1," + a["exits"][1]["loss"].dump() + ","));
    CHECK(contains(outcome.out, fmt::format("{:.4f}", number(a["exits"][1]["loss"]))));
    CHECK(contains(read_file(dir / "out/report.html"), "</html>"));
    CHECK(contains(read_file(dir / "out/overview.svg"), "</svg>"));
    for (const char* key : {"gain", "cka", "heads", "classification"}) CHECK(a["definitions"].contains(key));
  }

  TEST_CASE("analyze: a directory with something in it is left alone, and nothing is left of a run that fails") {
    const TempDir dir;
    const auto run = [&](const std::filesystem::path& out, std::vector<std::string> more) {
      return run_tool("analyze", arguments(oracle("dense"), oracle("dense") / "tokens.bin", out, more));
    };
    make_directories(dir / "out");
    REQUIRE(run(dir / "out", {}).code == 0);  // empty
    const std::string before = read_file(dir / "out/analysis.json");

    const Outcome again = run(dir / "out", {});
    CHECK(again.code == 1);
    CHECK(contains(again.err, "is not empty"));
    CHECK(contains(again.err, "--overwrite"));
    REQUIRE(run(dir / "out", {"--overwrite", "--tokens", "60"}).code == 0);
    CHECK(read_file(dir / "out/analysis.json") != before);
    CHECK_FALSE(std::filesystem::exists(dir / "out/gates.csv"));

    write_file(dir / "out/notes.txt", "mine");
    const Outcome other = run(dir / "out", {"--overwrite"});
    CHECK(other.code == 1);
    CHECK(contains(other.err, "notes.txt is no part of an analysis"));
    CHECK(read_file(dir / "out/notes.txt") == "mine");

    CHECK(run(dir / "deep/er", {"--twin", (dir / "none").string()}).code == 1);
    CHECK_FALSE(std::filesystem::exists(dir / "deep/er"));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path))
      CHECK(entry.path().filename().string().find(".tmp-") == std::string::npos);
  }

  TEST_CASE("analyze: errors name the flag") {
    const TempDir dir;
    write_byte_model(dir / "bytes");
    const std::string grt = oracle("grt").string(), tokens = (oracle("grt") / "tokens.bin").string();
    const std::string out = (dir / "out").string(), bytes = (dir / "bytes").string();
    write_text(dir / "text.bin", 100);
    write_file(dir / "file", "x");
    struct Row {
      std::vector<std::string> arguments;
      std::string says;
    };
    const std::vector<Row> table = {
        {{"--data", tokens, "--out", out}, "--checkpoint: expected the directory"},
        {{"--checkpoint", grt, "--out", out}, "--data: expected a token file"},
        {{"--checkpoint", grt, "--data", tokens}, "--out: expected a directory"},
        {{"--checkpoint", grt, "--data", tokens, "--out", (dir / "file").string()}, "this is not a directory"},
        {{"--checkpoint", grt, "--data", tokens, "--out", grt + "/x"}, "is in the checkpoint"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--tokens", "0"}, "--tokens: must be at least 1"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--batch-size", "0"}, "--batch-size: must be at least"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--depth-beyond", "3"},
         "--depth-beyond: 3 is not beyond the trained depth 3"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--depth-beyond", "x"}, "--depth-beyond: must be"},
        {{"--checkpoint", oracle("ouro").string(), "--data", tokens, "--out", out, "--depth-beyond", "9"},
         "--depth-beyond 9: this model has exits at 1.."},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--twin", bytes}, "--twin " + bytes},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--compare", bytes}, "--compare " + bytes},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--twin", oracle("dense").string()},
         "dense: its context is 31 tokens, that of --checkpoint 30"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--compare", out}, "out"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--prompt", "x"}, "--prompt: the tokenizer bytes"},
        {{"--checkpoint", grt, "--data", tokens, "--out", out, "--target", "x"}, "--target: expected --prompt"},
        {{"--checkpoint", bytes, "--data", (dir / "text.bin").string(), "--out", out, "--prompt", ""},
         "--prompt: expected a text"},
        {{"--checkpoint", bytes, "--data", (dir / "text.bin").string(), "--out", out, "--prompt", std::string(65, 'x')},
         "65 tokens are more than the model's context of 64"},
    };
    for (const Row& row : table) {
      CAPTURE(row.says);
      const Outcome outcome = run_tool("analyze", on_cpu(row.arguments));
      CHECK(outcome.code == 1);
      CHECK(outcome.out.empty());
      CAPTURE(outcome.err);
      CHECK(outcome.err.starts_with("analyze: "));
      CHECK(contains(outcome.err, row.says));
      CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
      CHECK_FALSE(std::filesystem::exists(out));
    }
  }

  TEST_CASE("analyze: a weight that is not finite is found") {
    const TempDir dir;
    write_spoiled("grt", dir / "bad", "core.1.mlp.c_fc.weight", std::nanf(""));
    const Outcome outcome = run_tool("analyze", arguments(dir / "bad", oracle("grt") / "tokens.bin", dir / "out", {}));
    CHECK(outcome.code == 1);
    CHECK(contains(outcome.err, "core.1.mlp.c_fc.weight"));
    CHECK_FALSE(std::filesystem::exists(dir / "out"));
  }
}

}  // namespace grt::test
