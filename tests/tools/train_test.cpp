// The binary `train`, run as a user would: oracle trajectories, resume, interruption, bad input.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/files.h"
#include "core/safetensors.h"
#include "core/threads.h"
#include "tests/support.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"
#include "train/checkpoint.h"

namespace grt {
namespace {

using test::contains;
using test::run_tool;
using test::TempDir;
using Record = nlohmann::json;
using Words = std::vector<std::string>;

std::vector<Record> log_lines(const fs::path& out) {
  std::istringstream text(read_file(out / "train.jsonl"));
  std::vector<Record> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Record::parse(line));
  return lines;
}

std::vector<Record> step_lines(const fs::path& out) {
  std::vector<Record> steps = log_lines(out);
  std::erase_if(steps, [](const Record& r) { return !r.contains("grad_norm"); });
  return steps;
}

fs::path oracle(const std::string& name) { return test::fixture("oracle/" + name); }
std::string tokens_of(const std::string& name) { return (oracle(name) / "tokens.bin").string(); }

void write_tokens(const fs::path& path, const std::vector<std::uint16_t>& ids) {
  write_file(path, std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * 2));
}

// A small model on the tokens of a fixture, with all that is random switched on.
Words small_run(const fs::path& out, const Words& more = {}) {
  Words words = {"--model",      (oracle("grt") / "config.json").string(),
                 "--data-train", tokens_of("grt"),
                 "--data-val",   tokens_of("grt"),
                 "--out",        out.string(),
                 "--steps",      "8",
                 "--batch-size", "2",
                 "--grad-accum", "2",
                 "--lr",         "1e-3",
                 "--eval-every", "4",
                 "--save-every", "2",
                 "--keep",       "10",
                 "--threads",    "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string latest(const fs::path& out) { return fs::exists(out / "latest") ? read_file(out / "latest") : ""; }

bool same_files(const fs::path& a, const fs::path& b) { return read_file(a) == read_file(b); }

void check_same_run(const fs::path& a, const fs::path& b, const std::string& step) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"})
    CHECK(same_files(a / step / file, b / step / file));
  std::vector<Record> x = log_lines(a), y = log_lines(b);
  for (auto* lines : {&x, &y})
    for (Record& r : *lines) r.erase("tokens_per_second");
  CHECK((x == y));  // too long to print
}

TEST_SUITE("tools") {
  TEST_CASE("eight steps of training follow the reference") {
    for (const std::string& name : test::kOracleModels) {
      CAPTURE(name);
      const TempDir dir;
      const Record expected = Record::parse(read_file(oracle(name) / "expected.json")).at("train");
      Words words = {"--model",      (oracle(name) / "config.json").string(),
                     "--init-from",  oracle(name).string(),
                     "--data-train", tokens_of(name),
                     "--data-val",   tokens_of(name),
                     "--out",        (dir / "out").string(),
                     "--seed",       "1",
                     "--eval-every", "8"};
      for (const auto& [flag, value] : expected.at("flags").items()) {
        words.push_back("--" + flag);
        words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
      }
      const test::Outcome run = run_tool("train", words);
      REQUIRE_MESSAGE(run.code == 0, run.err);
      const std::vector<Record> steps = step_lines(dir / "out");
      REQUIRE(steps.size() == 8);
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(std::abs(steps[i]["loss"].get<double>() - expected["losses"][i].get<double>()) < 1e-4);
        CHECK(steps[i]["grad_norm"].get<double>() ==
              doctest::Approx(expected["grad_norms"][i].get<double>()).epsilon(1e-3));
        CHECK(steps[i]["lr"].get<double>() == doctest::Approx(expected["lrs"][i].get<double>()).epsilon(1e-6));
      }
      CHECK(std::abs(log_lines(dir / "out").back()["val_loss"].get<double>() - expected["final_loss"].get<double>()) <
            1e-4);
    }
  }

  TEST_CASE("a run cut in two equals an uninterrupted one, bit for bit, with noise, sampled depth and accumulation") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "whole")).code == 0);
    // The first half ends where the schedule of the whole run would go on.
    REQUIRE(run_tool("train", small_run(dir / "cut")).code == 0);
    fs::remove_all(dir / "cut" / "step-00000006");
    fs::remove_all(dir / "cut" / "step-00000008");
    write_file(dir / "cut" / "latest", "step-00000004\n");
    const test::Outcome resumed = run_tool("train", {"--out", (dir / "cut").string(), "--resume"});
    REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
    CHECK(contains(resumed.out, "resumed after step 4"));
    check_same_run(dir / "whole", dir / "cut", "step-00000008");
    std::vector<double> depths;
    for (const Record& r : step_lines(dir / "whole")) depths.push_back(r["depth"].get<double>());
    CHECK(*std::min_element(depths.begin(), depths.end()) < *std::max_element(depths.begin(), depths.end()));
  }

  TEST_CASE("a poisson model repeats its random depths and states: resumed, recomputed, in a run of its own") {
    const TempDir dir;
    const auto run = [&](const char* name, const Words& more = {}) {
      Words words = small_run(dir / name, {"--initial-state", "random", "--seed", "3"});
      words[1] = (oracle("poisson") / "config.json").string();
      words.insert(words.end(), more.begin(), more.end());
      const test::Outcome outcome = run_tool("train", words);
      REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
      return outcome.out;
    };
    CHECK(contains(run("whole"), "depth poisson in 1..32"));
    run("recomputed", {"--recompute"});
    check_same_run(dir / "whole", dir / "recomputed", "step-00000008");
    run("cut");
    fs::remove_all(dir / "cut" / "step-00000006");
    fs::remove_all(dir / "cut" / "step-00000008");
    write_file(dir / "cut" / "latest", "step-00000004\n");
    REQUIRE(run_tool("train", {"--out", (dir / "cut").string(), "--resume"}).code == 0);
    check_same_run(dir / "whole", dir / "cut", "step-00000008");
    const Record expected = log_lines(dir / "whole").back();
    const test::Outcome eval = run_tool("eval", {"--checkpoint", (dir / "whole").string(), "--data", tokens_of("grt"),
                                                 "--json", (dir / "r.json").string()});
    REQUIRE_MESSAGE(eval.code == 0, eval.err);
    CHECK(Record::parse(read_file(dir / "r.json"))["loss"] == expected["val_loss"]);
  }

  TEST_CASE("recomputation and the number of threads change nothing") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "plain")).code == 0);
    REQUIRE(run_tool("train", small_run(dir / "again", {"--recompute"})).code == 0);
    check_same_run(dir / "plain", dir / "again", "step-00000008");
    Words threads = small_run(dir / "threads");
    threads.back() = "3";
    REQUIRE(run_tool("train", threads).code == 0);
    check_same_run(dir / "plain", dir / "threads", "step-00000008");
  }

  TEST_CASE("accumulation equals the large batch: sequential data, fixed depth, no noise") {
    const TempDir dir;
    const Words fixed = {"--data-order",  "sequential", "--depth-sampler", "fixed",
                         "--state-noise", "0",          "--gate-noise",    "0"};
    const auto run = [&](const char* out, const char* batch, const char* accumulation) {
      Words words = small_run(dir / out, fixed);
      const auto at = [&](const char* flag) { return std::find(words.begin(), words.end(), flag) + 1; };
      *at("--batch-size") = batch;
      *at("--grad-accum") = accumulation;
      const test::Outcome outcome = run_tool("train", words);
      REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
      return step_lines(dir / out);
    };
    const auto whole = run("1", "4", "1"), halves = run("2", "2", "2"), singles = run("4", "1", "4");
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) {
        CHECK(halves[i][key].get<double>() == doctest::Approx(whole[i][key].get<double>()).epsilon(2e-6));
        CHECK(singles[i][key].get<double>() == doctest::Approx(whole[i][key].get<double>()).epsilon(2e-6));
      }
      CHECK(whole[i]["tokens"] == singles[i]["tokens"]);
    }
  }

  TEST_CASE("an interrupted run saves its last finished step, says how to go on, and goes on to the same end") {
    const TempDir dir;
    Words words = small_run(dir / "cut");
    const std::string steps = test::kSanitized ? "100" : "400";  // enough to be interrupted twice
    *(std::find(words.begin(), words.end(), "--steps") + 1) = steps;
    Words whole = words;
    *(std::find(whole.begin(), whole.end(), "--out") + 1) = (dir / "whole").string();
    REQUIRE(run_tool("train", whole).code == 0);
    for (const int signal : {SIGINT, SIGTERM}) {
      const std::string before = latest(dir / "cut");
      test::Running running("train", words);
      for (int wait = 0; wait < 6000 && latest(dir / "cut") == before; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      running.signal(signal);
      const test::Outcome outcome = running.wait();
      REQUIRE_MESSAGE(outcome.code == 128 + signal, outcome.err);
      CHECK(contains(outcome.out, "--resume"));
      if (signal == SIGINT) words.push_back("--resume");
    }
    REQUIRE(run_tool("train", {"--out", (dir / "cut").string(), "--resume"}).code == 0);
    check_same_run(dir / "whole", dir / "cut", "step-00000" + steps);
  }

  TEST_CASE("killed at any moment, a run goes on from a complete checkpoint") {
    const TempDir dir;
    Words words = small_run(dir / "run");
    *(std::find(words.begin(), words.end(), "--steps") + 1) = "100000";
    *(std::find(words.begin(), words.end(), "--save-every") + 1) = "1";
    *(std::find(words.begin(), words.end(), "--keep") + 1) = "2";
    *(std::find(words.begin(), words.end(), "--eval-every") + 1) = "100000";
    std::int64_t last = 0;
    for (int round = 0; round < 12; ++round) {
      const std::string before = latest(dir / "run");
      test::Running running("train", words);
      for (int wait = 0; wait < 6000 && latest(dir / "run") == before; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::microseconds(1700 * round));
      running.signal(SIGKILL);
      running.wait();
      const std::string name = read_file(dir / "run" / "latest");
      const std::int64_t step = std::stoll(name.substr(5));
      CHECK(step > last);
      last = step;
      const test::Outcome shown =
          run_tool("eval", {"--checkpoint", (dir / "run").string(), "--data", tokens_of("grt"), "--depth", "1"});
      REQUIRE_MESSAGE(shown.code == 0, shown.err);
      if (round == 0) words.push_back("--resume");
    }
  }

  TEST_CASE("a changed flag is named and wins on resume, a changed model key is an error") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "run")).code == 0);
    const std::string out = (dir / "run").string();
    test::Outcome run = run_tool("train", {"--out", out, "--resume", "--steps", "10", "--lr", "5e-4"});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(contains(run.out, "--lr: 0.0005 replaces 0.001"));
    CHECK(contains(run.out, "--steps: 10 replaces 8"));
    CHECK(step_lines(dir / "run").size() == 10);
    run = run_tool("train", {"--out", out, "--resume", "--steps", "12", "--n-core", "1"});
    CHECK(run.code == 1);
    CHECK(contains(run.err, "n_core is 2"));
    run = run_tool("train", {"--out", out, "--resume", "--overwrite"});
    CHECK(run.code == 1);
    CHECK(contains(run.err, "exclude"));
  }

  TEST_CASE("--stage gate trains ouro's exit gate and leaves every other weight as it is") {
    const TempDir dir;
    const Words words = {"--model",        (oracle("ouro") / "config.json").string(),
                         "--init-from",    oracle("ouro").string(),
                         "--data-train",   tokens_of("ouro"),
                         "--data-val",     tokens_of("ouro"),
                         "--out",          (dir / "out").string(),
                         "--stage",        "gate",
                         "--steps",        "20",
                         "--batch-size",   "6",
                         "--data-order",   "sequential",
                         "--lr",           "1e-2",
                         "--min-lr",       "1e-2",
                         "--warmup-steps", "0",
                         "--recompute"};
    const test::Outcome run = run_tool("train", words);
    REQUIRE_MESSAGE(run.code == 0, run.err);
    const auto before = load_model(oracle("ouro"), test::cpu()), after = load_model(dir / "out", test::cpu());
    for (const Param& p : before->params().all()) {
      CAPTURE(p.name);
      const bool same = test::same_bits(p.var.value(), after->params().find(p.name)->var.value());
      CHECK(same == !p.name.starts_with("exit_gate."));
    }
    const std::vector<Record> steps = step_lines(dir / "out");
    REQUIRE(steps.size() == 20);
    CHECK(steps[19]["loss"].get<double>() < steps[0]["loss"].get<double>());

    const auto refused = [&](const char* flag, const char* value) {
      Words other = words;
      *(std::find(other.begin(), other.end(), flag) + 1) = value;
      const test::Outcome outcome = run_tool("train", other);
      CHECK(outcome.code == 1);
      return outcome.err;
    };
    CHECK(contains(refused("--stage", "two"), "--stage: must be all or gate, not \"two\""));
    CHECK(contains(refused("--init-from", ""), "--init-from must name one"));
    CHECK(contains(run_tool("train", small_run(dir / "grt", {"--stage", "gate"})).err, "is for ouro"));
  }

  TEST_CASE("a used --out is refused, --overwrite starts anew") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "run")).code == 0);
    const std::string before = read_file(dir / "run" / "train.jsonl");
    const test::Outcome refused = run_tool("train", small_run(dir / "run"));
    CHECK(refused.code == 1);
    CHECK(contains(refused.err, "--overwrite"));
    CHECK(read_file(dir / "run" / "train.jsonl") == before);
    CHECK(run_tool("train", small_run(dir / "run", {"--overwrite"})).code == 0);
    CHECK(step_lines(dir / "run").size() == 8);
  }

  TEST_CASE("a weight that is NaN stops the run before any update and is named") {
    const TempDir dir;
    fs::create_directories(dir / "bad");
    fs::copy(oracle("grt"), dir / "bad", fs::copy_options::recursive);
    fs::permissions(dir / "bad" / "model.safetensors", fs::perms::owner_all);
    std::string weights = read_file(dir / "bad" / "model.safetensors");
    const Safetensors file(dir / "bad" / "model.safetensors");
    const std::size_t header = 8 + *reinterpret_cast<const std::uint64_t*>(weights.data());
    const std::size_t at = header + file.entries().at("core.1.mlp.c_fc.weight").begin;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    weights.replace(at, 4, reinterpret_cast<const char*>(&nan), 4);
    write_file(dir / "bad" / "model.safetensors", weights);
    const test::Outcome run = run_tool("train", small_run(dir / "out", {"--init-from", (dir / "bad").string()}));
    CHECK(run.code == 1);
    CHECK(contains(run.err, "step 1: stopped before the update"));
    CHECK(contains(run.err, "core.1.mlp.c_fc.weight"));
    CHECK_FALSE(fs::exists(dir / "out" / "latest"));
  }

  TEST_CASE("a gradient that overflows while the loss is finite stops before the update and is named") {
    const TempDir dir;
    auto model = load_model(oracle("grt"), test::cpu());
    const auto fill = [&](const char* name, float value) {
      const Tensor& t = model->params().find(name)->var.value();
      std::fill_n(t.data<float>(), t.numel(), value);
    };
    fill("ln_f.weight", 3e36f);                // gradients of the state are as large
    fill("coda.0.ln_2.weight", 1e8f);          // and meet large hidden values,
    fill("coda.0.mlp.c_proj.weight", 1e-12f);  // whose part of the state is small
    std::vector<NamedTensor> tensors;
    for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value()});
    make_directories(dir / "steep");
    write_safetensors(dir / "steep" / "model.safetensors", tensors);
    write_file(dir / "steep" / "config.json", model->config_json().dump());
    const test::Outcome run = run_tool("train", small_run(dir / "out", {"--init-from", (dir / "steep").string()}));
    CHECK(run.code == 1);
    CHECK(contains(run.err, "step 1: stopped before the update: gradient of coda.0.mlp.c_proj.weight"));
    CHECK(step_lines(dir / "out").empty());
    CHECK_FALSE(fs::exists(dir / "out" / "latest"));
  }

  TEST_CASE("with --depth-scope step the micro-batches of a step share their depth") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "run", {"--depth-scope", "step"})).code == 0);
    for (const Record& r : step_lines(dir / "run")) {
      const double depth = r["depth"].get<double>();
      CHECK(depth == std::floor(depth));
    }
  }

  TEST_CASE("validating mor logs the causal loss, how many steps tokens take under it, and the routers' entropy") {
    const TempDir dir;
    Words words = small_run(dir / "out");
    words[1] = (oracle("mor") / "config.json").string();
    words.insert(words.end(), {"--init-from", oracle("mor").string()});
    const test::Outcome run = run_tool("train", words);
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK_FALSE(contains(run.out, "warning"));
    const Record last = log_lines(dir / "out").back();
    const test::Outcome eval = run_tool("eval", {"--checkpoint", (dir / "out").string(), "--data", tokens_of("grt"),
                                                 "--json", (dir / "r.json").string()});
    REQUIRE_MESSAGE(eval.code == 0, eval.err);
    const Record expected = Record::parse(read_file(dir / "r.json"));
    CHECK(last["val_loss_causal"] == expected["loss_causal"]);
    CHECK(last["depth_histogram"] == expected["depth_histogram"]);
    CHECK(last["router_entropy"] == expected["router_entropy"]);
    CHECK(last["depth_histogram"].size() > 1);
    CHECK(contains(eval.out, "steps of a token:  1: "));
  }

  TEST_CASE("train warns when the routers of mor send nearly all tokens the same way") {
    const TempDir dir;
    auto model = load_model(oracle("mor"), test::cpu());
    const auto fill = [&](const char* name, float value) {
      const Tensor& t = model->params().find(name)->var.value();
      std::fill_n(t.data<float>(), t.numel(), value);
    };
    fill("wpe.weight", 100);      // so that the state is positive,
    fill("router.1.weight", 1);   // all take step 2
    fill("router.2.weight", -1);  // and none step 3
    std::vector<NamedTensor> tensors;
    for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value()});
    make_directories(dir / "collapsed");
    write_safetensors(dir / "collapsed" / "model.safetensors", tensors);
    write_file(dir / "collapsed" / "config.json", model->config_json().dump());
    Words words = small_run(dir / "out", {"--init-from", (dir / "collapsed").string()});
    words.erase(words.begin(), words.begin() + 2);
    const test::Outcome run = run_tool("train", words);
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(contains(run.out, "warning: step 4: 100.0 % of the tokens take 2 of 3 steps"));
    CHECK(log_lines(dir / "out").back()["depth_histogram"] == Record{{"2", 1.0}});
  }

  TEST_CASE("mfu is null without a known peak and a share of it with one") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "none")).code == 0);
    CHECK(step_lines(dir / "none")[0]["mfu"].is_null());
    REQUIRE(run_tool("train", small_run(dir / "some", {"--peak-tflops", "1"})).code == 0);
    const double mfu = step_lines(dir / "some")[0]["mfu"].get<double>();
    CHECK(mfu > 0);
    CHECK(mfu < 1);
  }

  TEST_CASE("a run that diverges stops before the update; its last checkpoint is intact") {
    const TempDir dir;
    Words words = small_run(dir / "hot", {"--grad-clip", "0", "--warmup-steps", "0"});
    *(std::find(words.begin(), words.end(), "--lr") + 1) = "1e30";
    *(std::find(words.begin(), words.end(), "--save-every") + 1) = "1";
    *(std::find(words.begin(), words.end(), "--eval-every") + 1) = "100";
    const test::Outcome hot = run_tool("train", words);
    CHECK(hot.code == 1);
    CHECK(contains(hot.err, "stopped before the update"));
    CHECK(contains(hot.err, "not finite"));
    CHECK(read_file(dir / "hot" / "latest") == "step-00000001\n");
  }

  TEST_CASE("token files: too short, exactly long enough, ids out of range") {
    const TempDir dir;
    const auto train = [&](const fs::path& data) {
      Words words = small_run(dir / "out", {"--overwrite"});
      *(std::find(words.begin(), words.end(), "--data-train") + 1) = data.string();
      return run_tool("train", words);
    };
    write_tokens(dir / "empty.bin", {});
    write_tokens(dir / "ten.bin", std::vector<std::uint16_t>(10, 1));
    write_tokens(dir / "context.bin", std::vector<std::uint16_t>(30, 1));
    write_tokens(dir / "window.bin", std::vector<std::uint16_t>(31, 1));
    for (const char* name : {"empty.bin", "ten.bin", "context.bin"}) {
      const test::Outcome run = train(dir / name);
      CHECK(run.code == 1);
      CHECK(contains(run.err, name));
    }
    CHECK(train(dir / "window.bin").code == 0);
    std::vector<std::uint16_t> ids(2000, 1);
    ids[1234] = 98;
    write_tokens(dir / "high.bin", ids);
    const test::Outcome run = train(dir / "high.bin");
    CHECK(run.code == 1);
    for (const char* part : {"high.bin", "1234", "98", "97"}) CHECK(contains(run.err, part));
  }

  TEST_CASE("bad input ends with code 1 and one line that names it") {
    const TempDir dir;
    write_file(dir / "file", "");
    write_file(dir / "odd.json", "{\"architecture\": \"dense\", \"n_layer\": 3}");
    write_file(dir / "broken.json", "{\"architecture\": ");
    const std::string data = tokens_of("grt"), out = (dir / "out").string();
    const Words base = {"--data-train",     data, "--out", out, "--steps", "1", "--vocab-size", "97",
                        "--context-length", "30"};
    const std::vector<std::pair<Words, std::string>> cases = {
        {{"--model", "grt-nano", "--learing-rate", "1"}, "--learing-rate"},
        {{"--model", "grt-nano", "--lr", "abc"}, "--lr"},
        {{"--model", "grt-nano", "--lr", "1e9999"}, "--lr"},
        {{"--model", "grt-nano", "--batch-size", "2.5"}, "--batch-size"},
        {{"--model", "grt-nano", "--batch-size", "0"}, "--batch-size"},
        {{"--model", "grt-nano", "--batch-size", "-3"}, "--batch-size"},
        {{"--model", "grt-nano", "--grad-accum", "0"}, "--grad-accum"},
        {{"--model", "grt-nano", "--lr"}, "--lr"},
        {{"--model", "grt-nano", "stray"}, "stray"},
        {{"--model", "gpt9"}, "gpt9"},
        {{"--model", (dir / "odd.json").string()}, "n_layer"},
        {{"--model", (dir / "broken.json").string()}, "broken.json"},
        {{"--model", "grt-nano", "--n-layers", "3"}, "n_layers"},
        {{"--model", "dense-nano", "--state-noise", "0"}, "state_noise"},
        {{"--model", "grt-nano", "--d-model", "130"}, "n_heads"},
        {{"--model", "grt-nano", "--data-val", (dir / "none.bin").string()}, "none.bin"},
        {{"--model", "grt-nano", "--init-from", (dir / "nothing").string()}, "nothing"},
        {{"--model", "grt-nano", "--device", "cuda"}, "--device"},
        {{"--model", "grt-nano", "--dtype", "f16"}, "--dtype"},
        {{"--model", "grt-nano", "--threads", "0"}, "--threads"},
        {{"--model", "grt-nano", "--depth", "-1"}, "depth -1"},
        {{"--model", "dense-nano", "--depth", "9"}, "1..8"},
        {{"--model", "grt-nano", "--depth-sampler", "poisson"}, "--depth-sampler"},
        {{"--model", "dense-nano", "--depth-sampler", "poisson"}, "--depth-sampler"},
        {{"--model", "poisson-nano", "--n-recurrences", "1"}, "--depth-sampler"},
        {{"--model", "mor-nano", "--depth-sampler", "poisson"}, "--depth-sampler"},
        {{"--model", "mor-nano", "--depth", "7"}, "1..6"},
        {{"--model", "grt-nano", "--depth-scope", "rank"}, "--depth-scope"},
        {{"--model", "grt-nano", "--data-order", "sorted"}, "--data-order"},
        {{"--model", "grt-nano", "--beta2", "1.5"}, "--beta2"},
        {{"--model", "grt-nano", "--min-lr", "1"}, "--min-lr"},
        {{"--model", "grt-nano", "--recipe", "best"}, "--recipe"},
        {{"--model", "grt-nano", "--eval-batches", "3"}, "--eval-batches: needs --data-val"},
        {{"--model", "grt-nano", "--resume"}, "out"},
        {{}, "--model"},
    };
    for (const auto& [extra, part] : cases) {
      CAPTURE(part);
      Words words = base;
      words.insert(words.end(), extra.begin(), extra.end());
      const test::Outcome run = run_tool("train", test::on_cpu(words));
      CAPTURE(run.err);
      CHECK(run.code == 1);
      CHECK(contains(run.err, part));
      CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
      CHECK_FALSE(fs::exists(dir / "out" / "latest"));
    }
    Words below = base;
    below[3] = (dir / "file" / "run").string();
    below.insert(below.end(), {"--model", "grt-nano"});
    const test::Outcome run = run_tool("train", below);
    CHECK(run.code == 1);
    CHECK(contains(run.err, "file"));
  }

  TEST_CASE("too large a batch is refused before anything is allocated, with the size that fits") {
    const TempDir dir;
    const test::Outcome run = run_tool(
        "train", {"--model", "gpt2-small", "--vocab-size", "97", "--data-train", tokens_of("grt"), "--context-length",
                  "30", "--out", (dir / "out").string(), "--steps", "1", "--batch-size", "1000000"});
    CHECK(run.code == 1);
    CHECK(contains(run.err, "--batch-size 1000000"));
    CHECK(contains(run.err, "fits"));
    CHECK_FALSE(fs::exists(dir / "out"));
  }

  TEST_CASE("results depend neither on the working directory nor on the locale") {
    const TempDir dir;
    REQUIRE(run_tool("train", small_run(dir / "here")).code == 0);
    REQUIRE(run_tool("train", small_run(dir / "there"), test::decimal_comma_locale(), "/").code == 0);
    check_same_run(dir / "here", dir / "there", "step-00000008");
  }

  TEST_CASE("a pipe gets plain lines: no escape, no carriage return") {
    const TempDir dir;
    const test::Outcome run = run_tool("train", small_run(dir / "run"));
    CHECK_FALSE(contains(run.out + run.err, "\r"));
    CHECK_FALSE(contains(run.out + run.err, "\x1b"));
    CHECK(contains(run.out, "memory: weights"));
    CHECK(contains(run.out, "validation loss"));
  }

  TEST_CASE("a terminal gets a live line with the step, the share done and the time left") {
    const TempDir dir;
    std::string command = std::string(GRT_BIN_DIR) + "/train";
    for (const std::string& word : small_run(dir / "run")) command += " " + word;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> terminal(
        popen(("script -qec '" + command + "' /dev/null < /dev/null").c_str(), "r"), pclose);
    REQUIRE(terminal != nullptr);
    std::string seen;
    for (int c = std::fgetc(terminal.get()); c != EOF; c = std::fgetc(terminal.get())) seen += static_cast<char>(c);
    CAPTURE(seen);
    CHECK(contains(seen, "\r\x1b[Kstep "));
    CHECK(contains(seen, "step 8/8"));
    CHECK(contains(seen, "100%"));
    CHECK(contains(seen, " left"));
  }

  TEST_CASE("as many threads as this process may use, unless told otherwise") {
    const TempDir dir;
    Words words = small_run(dir / "run");
    words.resize(words.size() - 2);  // without --threads
    const test::Outcome run = run_tool("train", words);
    CHECK(contains(run.out, fmt::format("{} threads", allowed_cpus())));
  }

  TEST_CASE("--print-config shows the flags and the model and does nothing; --config reads it back") {
    const TempDir dir;
    const test::Outcome shown = run_tool("train", small_run(dir / "run", {"--print-config"}));
    REQUIRE_MESSAGE(shown.code == 0, shown.err);
    const Record config = Record::parse(shown.out);
    CHECK(config["flags"]["lr"] == 1e-3);
    CHECK(config["model"]["n_core"] == 2);
    CHECK_FALSE(fs::exists(dir / "run"));
    write_file(dir / "flags.json", "{\"lr\": 2e-3, \"steps\": 3}");
    const test::Outcome run = run_tool(
        "train", {"--config", (dir / "flags.json").string(), "--model", "grt-nano", "--lr", "3e-3", "--print-config"});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(Record::parse(run.out)["flags"]["lr"] == 3e-3);
    CHECK(Record::parse(run.out)["flags"]["steps"] == 3);
    const test::Outcome paper = run_tool("train", {"--model", "grt-small", "--recipe", "paper", "--print-config"});
    CHECK(Record::parse(paper.out)["flags"]["grad-accum"] == 60);
    CHECK(Record::parse(paper.out)["flags"]["steps"] == 20000);
    CHECK(Record::parse(paper.out)["flags"]["dtype"] == "bf16");
    const test::Outcome nano = run_tool("train", {"--model", "grt-nano", "--recipe", "paper", "--print-config"});
    CHECK(Record::parse(nano.out)["model"]["context_length"] == 1024);
  }

  TEST_CASE("--help lists every flag and ends with code 0") {
    const test::Outcome help = run_tool("train", {"--help"});
    CHECK(help.code == 0);
    for (const char* flag : {"--model", "--data-train", "--grad-accum", "--depth-sampler", "--state-noise",
                             "--n-layers", "--resume", "--device", "--threads"})
      CHECK(contains(help.out, flag));
  }
}

}  // namespace
}  // namespace grt
