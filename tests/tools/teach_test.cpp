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

  TEST_CASE("an interrupted run that began with --init-from and a file of flags prints a command that goes on") {
    const TempDir dir;
    const std::string dense = oracle("dense").string();
    write_file(dir / "flags.json", "{\"overwrite\": true, \"save-every\": 1}");
    Words words = run_words("grt", dir / "out",
                            {"--init-from", dense, "--init-map=middle", "--n-core", "1", "--n-prelude", "1",
                             "--teacher", dense, "--config", (dir / "flags.json").string()},
                            "100000");
    Running running("train", words);
    for (int wait = 0; wait < 6000 && !fs::exists(dir / "out" / "latest"); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    running.signal(SIGINT);
    const Outcome outcome = running.wait();
    REQUIRE_MESSAGE(outcome.code == 128 + SIGINT, outcome.err);
    const std::string command = outcome.out.substr(outcome.out.find("to go on:"));
    CHECK(contains(command, " --overwrite=false --resume"));
    CHECK(contains(command, "--init-from " + dense));
    CHECK(contains(command, "--teacher " + dense));
    const std::string steps = std::to_string(std::stoi(read_file(dir / "out" / "latest").substr(5)) + 1);
    *(std::find(words.begin(), words.end(), "--steps") + 1) = steps;
    words.insert(words.end(), {"--overwrite=false", "--resume"});
    const Outcome resumed = run_tool("train", words);
    CHECK_MESSAGE(resumed.code == 0, resumed.err);
  }

  TEST_CASE("a run goes on with the weights, the recipe and the teacher's checkpoint that it began with") {
    const TempDir dir;
    REQUIRE(run_tool("train", run_words("dense", dir / "teacher", {}, "2")).code == 0);
    const std::string teacher = (dir / "teacher").string(), dense = oracle("dense").string();
    const Words words = run_words("dense", dir / "out", {"--init-from", dense, "--teacher", teacher}, "2");
    REQUIRE(run_tool("train", words).code == 0);
    REQUIRE(run_tool("train", {"--out", teacher, "--resume", "--steps", "3"}).code == 0);
    const auto resumed = [&](const Words& more) {
      Words all = {"--out", (dir / "out").string(), "--resume", "--steps", "3"};
      all.insert(all.end(), more.begin(), more.end());
      return run_tool("train", all);
    };
    CHECK(contains(resumed({"--init-from", teacher}).err, "--resume: the run began with --init-from \"" + dense));
    CHECK(contains(resumed({"--init-map", "middle"}).err, "--resume: the run began with --init-map \"\""));
    CHECK(contains(resumed({"--recipe", "paper"}).err, "--resume: the run began with --recipe \"\""));
    const Outcome same = resumed({"--init-from", dense, "--teacher", teacher});
    REQUIRE_MESSAGE(same.code == 0, same.err);
    CHECK(contains(same.out, "teacher: " + (dir / "teacher/step-00000002").string() + ","));
    CHECK(!contains(same.out, "--teacher"));
  }

  TEST_CASE("a run that goes on with other text says so, and forgets the best loss of another validation") {
    const TempDir dir;
    const fs::path train = dir / "train.bin", val = dir / "val.bin";
    const std::string ids = read_file(oracle("dense") / "tokens.bin");
    write_file(train, ids);
    write_file(val, ids);
    Words words = run_words("dense", dir / "out", {"--data-val", val.string()}, "2");
    *(std::find(words.begin(), words.end(), "--data-train") + 1) = train.string();
    REQUIRE(run_tool("train", words).code == 0);
    const auto resumed = [&](const char* steps, const Words& more) {
      Words all = {"--out", (dir / "out").string(), "--resume", "--steps", steps};
      all.insert(all.end(), more.begin(), more.end());
      const Outcome outcome = run_tool("train", all);
      REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
      return outcome.out;
    };
    const fs::path state = dir / "out/step-00000002/trainer.json";
    const Json good = read_json(state.string());
    for (const auto& [flag, value] : {std::pair<const char*, Json>{"keep", 4294967298}, {"seed", -1}, {"steps", 1.5}}) {
      Json wrong = good;
      wrong["flags"][flag] = value;
      write_file(state, wrong.dump());
      const Outcome outcome = run_tool("train", {"--out", (dir / "out").string(), "--resume", "--lr", "1e-3"});
      CHECK(outcome.code == 1);
      CHECK(contains(outcome.err, fmt::format("step-00000002/trainer.json: flags.{} has the value", flag)));
    }
    write_file(state, good.dump());
    const std::string same = resumed("3", {});
    CHECK(!contains(same, "other tokens"));
    CHECK(!contains(same, "forgotten"));
    CHECK(contains(resumed("4", {"--eval-batches", "1"}), "validation is of other text than before: the best loss"));
    write_file(train, ids.substr(0, ids.size() - 2));
    write_file(val, ids.substr(2));
    const std::string other = resumed("5", {});
    CHECK(contains(other, "train.bin: holds other tokens than those that the run was trained on"));
    CHECK(contains(other, "validation is of other text than before: the best loss"));
    CHECK(read_file(dir / "out" / "best") == "step-00000005\n");
  }

  TEST_CASE("a directory whose name is not UTF-8 serves as any other") {
    const TempDir dir;
    const std::string out = (dir / "caf\xe9").string();
    const Outcome begun = run_tool("train", run_words("dense", out, {}, "2"));
    REQUIRE_MESSAGE(begun.code == 0, begun.err);
    const Outcome resumed = run_tool("train", {"--out", out, "--resume", "--steps", "3"});
    REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
    const Outcome shown = run_tool("eval", {"--checkpoint", out, "--data", (oracle("dense") / "tokens.bin").string(),
                                            "--json", out + "/r\xe9.json"});
    CHECK_MESSAGE(shown.code == 0, shown.err);
    CHECK(read_json(out + "/r\xe9.json")["data_fingerprint"].get<std::string>().size() == 16);
  }

  TEST_CASE("a run's directory is no checkpoint, and holds none of its own files") {
    const TempDir dir;
    REQUIRE(run_tool("train", run_words("dense", dir / "out", {}, "2")).code == 0);
    const fs::path step = dir / "out/step-00000002";
    const Outcome inside = run_tool("train", {"--out", step.string(), "--resume", "--steps", "3"});
    CHECK(inside.code == 1);
    CHECK(contains(inside.err, "step-00000002: is a checkpoint; a run goes on in the directory that holds"));
    const Outcome anew = run_tool("train", run_words("dense", step, {"--overwrite"}));
    CHECK(anew.code == 1);
    CHECK(contains(anew.err, "step-00000002: is a checkpoint, which a run's directory cannot be"));
  }

  TEST_CASE("--overwrite does not remove what the run begins with") {
    const TempDir dir;
    REQUIRE(run_tool("train", run_words("dense", dir / "out", {}, "2")).code == 0);
    const std::string out = (dir / "out").string();
    for (const char* flag : {"--init-from", "--teacher"}) {
      const Outcome outcome = run_tool("train", run_words("dense", out, {flag, out, "--overwrite"}));
      CHECK(outcome.code == 1);
      CHECK(contains(outcome.err, std::string("--overwrite: would remove ") + flag));
      CHECK(fs::exists(dir / "out/step-00000002/model.safetensors"));
    }
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
