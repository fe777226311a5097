// `mpirun -np N train`, as a user would start it: what it prints, and how it ends when something or someone ends it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "core/comm.h"
#include "core/json.h"
#include "tests/train/oracle_models.h"

namespace grt::test {
namespace {

using Words = std::vector<std::string>;

// What mpirun asks of root, and of nobody else.
Words as_root() {
  Words words;
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
    words.emplace_back(variable);
  return words;
}

std::string train_binary() { return fmt::format("{}/train", GRT_BIN_DIR); }

Words run_flags(const fs::path& out, const Words& more = {}) {
  Words words = {"--model",      (oracle("grt") / "config.json").string(),
                 "--data-train", (oracle("grt") / "tokens.bin").string(),
                 "--data-val",   (oracle("grt") / "tokens.bin").string(),
                 "--out",        out.string(),
                 "--steps",      "12",
                 "--batch-size", "2",
                 "--grad-accum", "4",
                 "--lr",         "1e-3",
                 "--eval-every", "6",
                 "--save-every", "4",
                 "--keep",       "10"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words endless(const fs::path& out) {
  Words words = run_flags(out, {"--warmup-steps", "1"});
  *(std::find(words.begin(), words.end(), "--steps") + 1) = "1000000";
  return words;
}

Words launched(int ranks, const Words& flags) {
  Words words = {"-np", std::to_string(ranks), "--oversubscribe", train_binary()};
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

Outcome launch(int ranks, const Words& flags, const Words& environment = {}) {
  Words all = as_root();
  all.insert(all.end(), environment.begin(), environment.end());
  return run_tool("/usr/bin/mpirun", launched(ranks, flags), all);
}

std::vector<Json> steps_of(const fs::path& out) {
  std::istringstream text(read_file(out / "train.jsonl"));
  std::vector<Json> steps;
  for (std::string line; std::getline(text, line);)
    if (Json record = Json::parse(line); record.contains("grad_norm")) steps.push_back(std::move(record));
  return steps;
}

std::int64_t count(const std::string& text, const std::string& part) {
  std::int64_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

void wait_for(const fs::path& file) {
  for (int i = 0; i < 6000 && !fs::exists(file); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(fs::exists(file));
}

// The process that computes a rank of the run into `out`, found by its command line and environment.
int process_of(const fs::path& out, int rank) {
  const auto text = [](const fs::path& file) {
    std::error_code ignored;
    return fs::exists(file, ignored) ? read_file(file) : std::string();
  };
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const std::string command = text(entry.path() / "cmdline");
    if (!command.starts_with(train_binary()) || !contains(command, out.string())) continue;
    if (contains(text(entry.path() / "environ"), fmt::format("OMPI_COMM_WORLD_RANK={}", rank))) return std::stoi(name);
  }
  return -1;
}

// mpirun does not wait for what it ends.
bool rank_ends(const fs::path& out, int rank) {
  for (int i = 0; i < 2000 && process_of(out, rank) != -1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return process_of(out, rank) == -1;
}

// Everything that a checkpoint needs is there and whole: one rank goes on from it.
void check_resumable(const fs::path& out) {
  const std::int64_t step = load_trainer_state(resolve_checkpoint(out)).step;
  const Outcome more = run_tool("train", {"--out", out.string(), "--resume", "--steps", std::to_string(step + 2)});
  CHECK_MESSAGE(more.code == 0, more.err);
  CHECK(steps_of(out).size() == static_cast<std::size_t>(step + 2));
}

}  // namespace

TEST_SUITE("launch") {
  TEST_CASE("two ranks print once, say how many they are, and log what one rank logs, on any number of them later") {
    const TempDir dir;
    const Outcome alone = run_tool("train", run_flags(dir / "alone"));
    REQUIRE_MESSAGE(alone.code == 0, alone.err);
    Words first = run_flags(dir / "two");
    const Outcome two = launch(2, first);
    REQUIRE_MESSAGE(two.code == 0, two.err);
    CHECK(count(two.out, "model: grt") == 1);
    CHECK(count(two.out, "done after step 12") == 1);
    CHECK(contains(two.out, "2 ranks of "));
    CHECK_FALSE(contains(two.out, "\x1b"));  // mpirun gives ranks a terminal, wherever its own output goes
    // 12 steps on two ranks, 4 on one, 4 on three: with the schedule of 12, whose rate stays where it ends.
    REQUIRE(run_tool("train", {"--out", (dir / "two").string(), "--resume", "--steps", "16"}).code == 0);
    const Outcome three = launch(3, {"--out", (dir / "two").string(), "--resume", "--steps", "20"});
    REQUIRE_MESSAGE(three.code == 0, three.err);
    REQUIRE(run_tool("train", {"--out", (dir / "alone").string(), "--resume", "--steps", "16"}).code == 0);
    REQUIRE(run_tool("train", {"--out", (dir / "alone").string(), "--resume", "--steps", "20"}).code == 0);
    const std::vector<Json> a = steps_of(dir / "alone"), b = steps_of(dir / "two");
    REQUIRE(a.size() == 20);
    REQUIRE(b.size() == 20);
    for (std::size_t i = 0; i < 20; ++i) {
      CHECK(std::abs(a[i]["loss"].get<double>() - b[i]["loss"].get<double>()) < 1e-5);
      for (const char* key : {"step", "depth", "tokens", "lr", "flops"}) CHECK(a[i][key] == b[i][key]);
    }
  }

  TEST_CASE("what is wrong on all ranks is said once, what is wrong on one by that one, and all end") {
    const TempDir dir;
    const auto check_error = [](const Outcome& run, const std::string& line) {
      CAPTURE(run.err);
      CHECK(run.code == 1);
      CHECK(count(run.err, "train: rank") == 1);
      CHECK(contains(run.err, line));
    };
    check_error(launch(2, {"--steps", "many"}), "train: rank 0 of 2: --steps");
    Words few = run_flags(dir / "few");
    *(std::find(few.begin(), few.end(), "--grad-accum") + 1) = "1";
    check_error(launch(2, few), "--grad-accum: the 1 micro-batches of a step cannot keep 2 ranks busy");
    CHECK_FALSE(fs::exists(dir / "few"));

    const auto both = [&](const Words& of_first, const Words& of_second) {
      Words words = {"--oversubscribe"};
      const auto add = [&](const char* place, const Words& flags) {
        make_directories(dir / place);
        for (const std::string& word :
             {std::string("-np"), std::string("1"), std::string("--wdir"), std::string(dir / place), train_binary()})
          words.push_back(word);
        words.insert(words.end(), flags.begin(), flags.end());
      };
      add("first", of_first);
      words.emplace_back(":");
      add("second", of_second);
      return run_tool("/usr/bin/mpirun", words, as_root());
    };
    const auto differing = [&](const Words& of_second) { return both(run_flags(dir / "odd"), of_second); };
    Words second = run_flags(dir / "odd");
    *(std::find(second.begin(), second.end(), "--data-train") + 1) = (dir / "nothing.bin").string();
    check_error(differing(second), "other flags");
    second = run_flags(dir / "odd", {"--seed", "no"});
    check_error(differing(second), "train: rank 1 of 2: --seed");
    // The same name is another file's elsewhere: a longer one, or one with another token.
    std::string tokens = read_file(oracle("grt") / "tokens.bin");
    for (const char* flag : {"--data-train", "--data-val"}) {
      Words local = run_flags(dir / "odd");
      *(std::find(local.begin(), local.end(), flag) + 1) = "tokens.bin";
      write_file(dir / "first/tokens.bin", tokens);
      write_file(dir / "second/tokens.bin", tokens + tokens);
      check_error(both(local, local),
                  fmt::format("{} tokens.bin: rank 1 reads other tokens ({} of them) than rank 0 ({})", flag,
                              tokens.size(), tokens.size() / 2));
      std::string other = tokens;
      other[0] ^= 1;
      write_file(dir / "second/tokens.bin", other);
      check_error(both(local, local), fmt::format("{} tokens.bin: rank 1 reads other tokens", flag));
    }
    CHECK(launch(2, {"--help"}).out == run_tool("train", {"--help"}).out);
  }

  TEST_CASE("when one rank is killed the others end within seconds, and the last checkpoint is whole") {
    const TempDir dir;
    Running run("/usr/bin/mpirun", launched(2, endless(dir / "run")), as_root());
    wait_for(dir / "run" / "latest");
    const int victim = process_of(dir / "run", 1);
    REQUIRE(victim > 0);
    kill(victim, SIGKILL);
    const Outcome outcome = run.wait();
    CHECK(outcome.code != 0);
    CHECK(contains(outcome.err, "rank 1"));
    CHECK(contains(outcome.err, "signal 9"));
    CHECK(rank_ends(dir / "run", 0));
    check_resumable(dir / "run");
  }

  TEST_CASE("a signal to mpirun, or to one rank alone, ends all after the same step, which is saved") {
    for (const bool to_all : {true, false}) {
      const TempDir dir;
      Running run("/usr/bin/mpirun", launched(2, endless(dir / "run")), as_root());
      wait_for(dir / "run" / "latest");
      to_all ? run.signal(SIGUSR1) : static_cast<void>(kill(process_of(dir / "run", 1), SIGTERM));
      const Outcome outcome = run.wait();
      CAPTURE(outcome.err);
      CHECK(outcome.code == 128 + (to_all ? SIGUSR1 : SIGTERM));
      CHECK(contains(outcome.out, to_all ? "interrupted by SIGUSR1 " : "interrupted by SIGTERM "));
      CHECK(contains(outcome.out, "mpirun -np 2 "));
      const std::int64_t last = steps_of(dir / "run").back()["step"];
      CHECK(load_trainer_state(resolve_checkpoint(dir / "run")).step == last);
      check_resumable(dir / "run");
    }
  }
}

// With the emulated backend that the environment names.
TEST_SUITE("launch_gpu") {
  TEST_CASE("on GPUs a run of two ranks goes on on one and on three, moments sharded or not, as on one all along") {
    const TempDir dir;
    const auto flags = [&](const char* out, const Words& more) {
      Words words = run_flags(dir / out, {"--device", "cuda", "--context-length", "8"});
      *(std::find(words.begin(), words.end(), "--steps") + 1) = "3";
      words.insert(words.end(), more.begin(), more.end());
      return words;
    };
    const auto resumed = [&](const char* out, const char* steps, const Words& more = {}) {
      Words words = {"--out", (dir / out).string(), "--resume", "--steps", steps};
      words.insert(words.end(), more.begin(), more.end());
      return words;
    };
    const Outcome alone = run_tool("train", flags("alone", {}));
    REQUIRE_MESSAGE(alone.code == 0, alone.err);
    const Outcome two = launch(2, flags("two", {"--shard-optimizer"}));
    REQUIRE_MESSAGE(two.code == 0, two.err);
    CHECK(contains(two.out, "device: cuda:0, f32, 2 ranks of "));
    for (const char* steps : {"5", "7"}) REQUIRE(run_tool("train", resumed("alone", steps)).code == 0);
    REQUIRE(run_tool("train", resumed("two", "5")).code == 0);
    const Outcome three = launch(3, resumed("two", "7", {"--device", "auto"}));
    REQUIRE_MESSAGE(three.code == 0, three.err);
    CHECK(contains(three.out, "device: cuda:0, f32, 3 ranks of "));
    const std::vector<Json> a = steps_of(dir / "alone"), b = steps_of(dir / "two");
    REQUIRE(a.size() == 7);
    REQUIRE(b.size() == 7);
    for (std::size_t i = 0; i < 7; ++i) {
      CHECK(std::abs(a[i]["loss"].get<double>() - b[i]["loss"].get<double>()) < 1e-5);
      CHECK(a[i]["depth"] == b[i]["depth"]);
    }
  }

  TEST_CASE("what keeps ranks from GPUs is said by name, and all end") {
    const TempDir dir;
    const Words flags = run_flags(dir / "run", {"--device", "cuda", "--context-length", "8"});
    const auto check_error = [&](const Words& environment, const std::string& line) {
      const Outcome run = launch(2, flags, environment);
      CAPTURE(run.err);
      CHECK(run.code == 1);
      CHECK(contains(run.err, line));
    };
    check_error({"GRT_EMU_DEVICES=1"}, "train: rank 0 of 2: ranks 0 and 1 have the same GPU");
    check_error({"GRT_EMU_NCCL_ERROR=1"},
                "NCCL: handing out rank 0's values: remote process exited or there was a network error");
    check_error({"GRT_NCCL_LIBRARY=/nowhere/libgrt_nccl.so"}, "--device cpu does not");
    const Outcome one = run_tool("train", flags, {"GRT_NCCL_LIBRARY=/nowhere/libgrt_nccl.so"});
    CHECK_MESSAGE(one.code == 0, one.err);
  }

  TEST_CASE("when one rank is killed the other, which waits for its GPU, ends too") {
    const TempDir dir;
    Words flags = endless(dir / "run");
    for (const char* word : {"--device", "cuda", "--context-length", "8"}) flags.emplace_back(word);
    Running run("/usr/bin/mpirun", launched(2, flags), as_root());
    wait_for(dir / "run" / "latest");
    const int victim = process_of(dir / "run", 1);
    REQUIRE(victim > 0);
    kill(victim, SIGKILL);
    const Outcome outcome = run.wait();
    CHECK(outcome.code != 0);
    CHECK(contains(outcome.err, "rank 1"));
    CHECK(rank_ends(dir / "run", 0));
  }
}

}  // namespace grt::test
