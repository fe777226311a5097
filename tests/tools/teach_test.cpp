// train --teacher and --init-map, run as a user would.
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <sstream>
#include <thread>

#include "core/safetensors.h"
#include "tests/support.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

using Words = std::vector<std::string>;

std::vector<Json> log_lines(const fs::path& out) {
  std::istringstream text(read_file(out / "train.jsonl"));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

Words run_words(const std::string& model, const fs::path& out, const Words& more, const std::string& steps = "1") {
  Words words = {"--model",      (oracle(model) / "config.json").string(),
                 "--data-train", (oracle(model) / "tokens.bin").string(),
                 "--out",        out.string(),
                 "--batch-size", "2",
                 "--steps",      steps,
                 "--threads",    "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json first_step(const std::string& model, const fs::path& out, const Words& more) {
  const Outcome outcome = run_tool("train", run_words(model, out, more));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  return log_lines(out).front();
}

std::string train_error(const std::string& model, const fs::path& out, const Words& more) {
  const Outcome outcome = run_tool("train", on_cpu(run_words(model, out, more)));
  CHECK(outcome.code == 1);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(!fs::exists(out));
  return outcome.err;
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("a model taught by itself alone has no loss and no gradient, exactly") {
    const TempDir dir;
    for (const char* temperature : {"1", "2.5"}) {
      const std::string self = oracle("dense").string();
      const Json step = first_step("dense", dir / temperature,
                                   {"--init-from", self, "--teacher", self, "--distill-weight", "1",
                                    "--distill-temperature", temperature, "--weight-decay", "0", "--grad-accum", "2"});
      CHECK(step["loss"] == 0.0);
      CHECK(step["grad_norm"] == 0.0);
      const fs::path saved = dir / temperature / "step-00000001" / "model.safetensors";
      const Tensor before = oracle_model("dense")->params().find("wpe.weight")->var.value(),
                   after = Tensor::like(before);
      Safetensors(saved).read("wpe.weight", after);
      CHECK(same_bits(before, after));
    }
  }

  TEST_CASE("the loss is (1 - w) cross-entropy + w divergence, for every architecture but ouro") {
    const TempDir dir;
    const std::string teacher = oracle("dense").string();
    for (const std::string model : {"dense", "grt", "poisson", "mor", "rrt"}) {
      CAPTURE(model);
      const auto loss = [&](const std::string& name, const Words& more) {
        Words words = {"--seed", "4", "--context-length", "16"};
        words.insert(words.end(), more.begin(), more.end());
        return first_step(model, dir / (model + name), words)["loss"].get<double>();
      };
      const double alone = loss("none", {});
      const double w0 = loss("0", {"--teacher", teacher, "--distill-weight", "0"});
      const double w1 = loss("1", {"--teacher", teacher, "--distill-weight", "1", "--distill-temperature", "2"});
      const double w3 = loss("3", {"--teacher", teacher, "--distill-weight", "0.3", "--distill-temperature", "2"});
      CHECK(w0 == doctest::Approx(alone).epsilon(1e-6));
      CHECK(w1 > 0.01);
      // mor's routers have a loss of their own, which the teacher leaves alone; it cancels.
      CHECK(w3 == doctest::Approx(0.7 * w0 + 0.3 * w1).epsilon(1e-5));
      CHECK(std::abs(w1 - w0) > 1e-3);
    }
  }

  TEST_CASE("a student comes nearer to its teacher") {
    const TempDir dir;
    const Words words = run_words("grt", dir / "out",
                                  {"--teacher", oracle("dense").string(), "--distill-weight", "1", "--context-length",
                                   "16", "--lr", "3e-3", "--depth-sampler", "fixed"},
                                  "60");
    const Outcome run = run_tool("train", words);
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(contains(run.out, "teacher: " + oracle("dense").string() + ", weight 1, temperature 1"));
    CHECK(contains(run.out, ", teacher "));  // in the memory plan
    const std::vector<Json> lines = log_lines(dir / "out");
    CHECK(lines[59]["loss"].get<double>() < 0.7 * lines[0]["loss"].get<double>());
  }

  TEST_CASE("a teacher with a weight that is NaN is named before the first step") {
    const TempDir dir;
    write_spoiled("dense", dir / "bad", "wpe.weight", std::numeric_limits<float>::quiet_NaN());
    const Outcome run = run_tool("train", run_words("grt", dir / "out", {"--teacher", (dir / "bad").string()}, "1"));
    CHECK(run.code == 1);
    CHECK(contains(run.err, fmt::format("train: --teacher {}: wpe.weight ", (dir / "bad").string())));
    CHECK_FALSE(fs::exists(dir / "out"));
  }

  TEST_CASE("a resumed run keeps its teacher, recomputation changes nothing, and a teacher that is gone is named") {
    const TempDir dir;
    fs::copy(oracle("dense"), dir / "teacher");
    const auto words = [&](const std::string& out, const Words& more = {}) {
      Words all =
          run_words("grt", dir / out,
                    {"--teacher", (dir / "teacher").string(), "--distill-weight", "0.6", "--distill-temperature", "2",
                     "--context-length", "16", "--save-every", "1", "--keep", "9"},
                    "4");
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    REQUIRE(run_tool("train", words("whole")).code == 0);
    REQUIRE(run_tool("train", words("cut")).code == 0);
    REQUIRE(run_tool("train", words("again", {"--recompute"})).code == 0);
    for (const char* step : {"step-00000003", "step-00000004"}) fs::remove_all(dir / "cut" / step);
    write_file(dir / "cut" / "latest", "step-00000002\n");
    const Outcome resumed = run_tool("train", {"--out", (dir / "cut").string(), "--resume"});
    REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
    CHECK(contains(resumed.out, "weight 0.6, temperature 2"));
    const std::string end = read_file(dir / "whole" / "step-00000004" / "model.safetensors");
    CHECK(read_file(dir / "cut" / "step-00000004" / "model.safetensors") == end);
    CHECK(read_file(dir / "again" / "step-00000004" / "model.safetensors") == end);

    fs::remove_all(dir / "teacher");
    const Outcome gone = run_tool("train", {"--out", (dir / "cut").string(), "--resume", "--steps", "5"});
    CHECK(gone.code == 1);
    CHECK(contains(gone.err, (dir / "teacher").string()));
  }

  TEST_CASE("--init-map middle makes a recurrent model of a dense one, and says which block becomes which") {
    const TempDir dir;
    const std::string dense = oracle("dense").string();
    // Once through three blocks without gate, injection and noise is the dense model of three blocks.
    const Json config{{"architecture", "grt"},  {"vocab_size", 97},  {"padded_vocab_size", 128}, {"context_length", 16},
                      {"d_model", 24},          {"n_heads", 3},      {"n_recurrences", 1},       {"use_gate", false},
                      {"use_injection", false}, {"state_noise", 0.0}};
    write_file(dir / "config.json", config.dump());
    Words words = run_words("dense", dir / "recurrent", {"--init-from", dense, "--init-map", "middle", "--seed", "4"});
    words[1] = (dir / "config.json").string();
    const Outcome run = run_tool("train", words);
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(contains(run.out, "prelude.0 <- h.0, core.0 <- h.1, coda.0 <- h.2"));
    const Json step = log_lines(dir / "recurrent").front();
    const Outcome resumed = run_tool("train", {"--out", (dir / "recurrent").string(), "--resume", "--steps", "2"});
    CHECK_MESSAGE(resumed.code == 0, resumed.err);
    const auto model = load_model(dense, cpu());
    TokenData data = oracle_tokens("dense", 97);
    const Batch batch = training_batch(data, {.seed = 4, .context_length = 16, .batch_size = 2}, 0, 0, cpu());
    const double expected = values(model->loss(batch.tokens, batch.targets, 3, {}).value())[0];
    CHECK(step["loss"].get<double>() == doctest::Approx(expected).epsilon(1e-6));
  }

  TEST_CASE("an interrupted run that began with --init-from prints a command that goes on") {
    const TempDir dir;
    const std::string dense = oracle("dense").string();
    Words words = run_words("grt", dir / "out",
                            {"--init-from", dense, "--init-map=middle", "--n-core", "1", "--n-prelude", "1",
                             "--teacher", dense, "--save-every", "1"},
                            "100000");
    Running running("train", words);
    for (int wait = 0; wait < 6000 && !fs::exists(dir / "out" / "latest"); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    running.signal(SIGINT);
    const Outcome outcome = running.wait();
    REQUIRE_MESSAGE(outcome.code == 128 + SIGINT, outcome.err);
    const std::string command = outcome.out.substr(outcome.out.find("to go on:"));
    CHECK(contains(command, "--resume"));
    CHECK(!contains(command, "--init"));
    CHECK(contains(command, "--teacher " + dense));
  }

  TEST_CASE("a teacher or a map that cannot be used is refused before anything is written") {
    const TempDir dir;
    const std::string dense = oracle("dense").string(), other = oracle("grt").string();
    const auto error = [&](const std::string& model, const Words& more) {
      return train_error(model, dir / "out", more);
    };
    CHECK(
        contains(error("ouro", {"--teacher", dense, "--context-length", "16"}), "--teacher: ouro weights the losses"));
    CHECK(contains(error("grt", {"--distill-weight", "0.5"}), "--distill-weight: needs a --teacher"));
    CHECK(contains(error("grt", {"--distill-temperature", "2"}), "--distill-temperature: needs a --teacher"));
    CHECK(contains(error("grt", {"--teacher", dense, "--distill-weight", "1.5"}), "--distill-weight: must be 0..1"));
    CHECK(contains(error("grt", {"--teacher", dense, "--distill-temperature", "0"}), "--distill-temperature: must be"));
    CHECK(contains(error("dense", {"--teacher", (dir / "none").string()}), "none: not a directory"));
    CHECK(contains(error("dense", {"--teacher", dense, "--vocab-size", "98"}), "has 97 tokens of tokenizer bytes"));
    CHECK(contains(error("dense", {"--teacher", dense, "--context-length", "40"}), "has 31 positions, the model 40"));
    CHECK(contains(error("grt", {"--init-map", "middle"}), "--init-map: needs --init-from"));
    CHECK(contains(error("grt", {"--init-from", dense, "--init-map", "first"}), "--init-map: the only one is middle"));
    CHECK(contains(error("grt", {"--init-from", other, "--init-map", "middle"}), "not grt of grt"));
    CHECK(
        contains(error("grt", {"--init-from", dense, "--init-map", "middle", "--n-coda", "9", "--context-length", "9"}),
                 "are more than 3 dense blocks"));
  }
}

}  // namespace grt::test
