// Flags as users type them, config files, help, and what a wrong word is answered.
#include "core/flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/support.h"

namespace grt::test {
namespace {

struct Config {
  bool recompute = false, bias = true;
  int batch_size = 8;
  std::int64_t steps = 1000;
  std::uint64_t seed = 1337;
  double lr = 6e-4;
  std::string out = "out", config, prompt;
  std::vector<std::string> data;
  std::optional<int> depth;
  std::optional<std::int64_t> warmup_steps;
  std::optional<double> min_lr;
  std::optional<std::string> resume;

  template <class V>
  void fields(V&& v) {
    v("recompute", recompute, "recompute activations");
    v("bias", bias, "use biases");
    v("batch-size", batch_size, "sequences in a micro-batch");
    v("steps", steps, "updates");
    v("seed", seed, "of all random numbers");
    v("lr", lr, "peak learning rate");
    v("out", out, "directory");
    v("config", config, "JSON file of flags");
    v("prompt", prompt, "text");
    v("data", data, "token files");
    v("depth", depth, "recurrences");
    v("warmup-steps", warmup_steps, "by default steps / 10");
    v("min-lr", min_lr, "last learning rate");
    v("resume", resume, "checkpoint");
  }
};

struct Small {
  int width = 3;
  template <class V>
  void fields(V&& v) {
    v("width", width, "channels");
  }
};

// The config after the words; throws what parse() throws.
Config parsed(const std::vector<std::string>& words, std::vector<std::string>* stray = nullptr) {
  Config config;
  Flags flags("train", "Trains a model.");
  flags.add(config);
  if (stray) flags.positional("files", *stray, "other words");
  std::vector<const char*> argv = {"train"};
  for (const std::string& w : words) argv.push_back(w.c_str());
  const bool run = flags.parse(static_cast<int>(argv.size()), argv.data());
  CHECK(run);
  return config;
}

std::string refusal(const std::vector<std::string>& words) {
  return error_of([&] { parsed(words); });
}

// What f() prints to stdout.
template <class F>
std::string printed(F&& f) {
  const TempDir dir;
  std::fflush(stdout);
  const int before = dup(1), file = open((dir / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, 1);
  f();
  std::fflush(stdout);
  dup2(before, 1);
  close(before);
  close(file);
  return read_file(dir / "out");
}

TEST_SUITE("core") {
  TEST_CASE("every kind of flag is read in both spellings") {
    const Config c = parsed({"--recompute", "--bias=false", "--batch-size", "16", "--steps=10000000000", "--seed",
                             "18446744073709551615", "--lr=1e-3", "--out", "a b", "--data", "x", "y", "--depth=3",
                             "--warmup-steps", "0", "--min-lr", ".5", "--resume=c"});
    CHECK(c.recompute);
    CHECK(!c.bias);
    CHECK(c.batch_size == 16);
    CHECK(c.steps == 10000000000);
    CHECK(c.seed == 18446744073709551615u);
    CHECK(c.lr == 1e-3);
    CHECK(c.out == "a b");
    CHECK(c.data == std::vector<std::string>{"x", "y"});
    CHECK(c.depth == 3);
    CHECK(c.warmup_steps == 0);
    CHECK(c.min_lr == 0.5);
    CHECK(c.resume == "c");
  }

  TEST_CASE("without words the defaults stay") {
    const Config c = parsed({});
    CHECK(values_of(c) == values_of(Config{}));
    CHECK(!c.depth);
  }

  TEST_CASE("whole numbers are good for a double flag") {
    CHECK(parsed({"--lr=1"}).lr == 1.0);
    CHECK(parsed({"--lr", "-2"}).lr == -2.0);
  }

  TEST_CASE("a value may hold =, brackets, commas, dashes, spaces, or be empty or negative") {
    CHECK(parsed({"--prompt=a=b=c"}).prompt == "a=b=c");
    CHECK(parsed({"--prompt", "a=b"}).prompt == "a=b");
    CHECK(parsed({"--prompt", "=x"}).prompt == "=x");
    CHECK(parsed({"--prompt", "[1,2,3]"}).prompt == "[1,2,3]");
    CHECK(parsed({"--prompt=[a]"}).prompt == "[a]");
    CHECK(parsed({"--prompt", "- item"}).prompt == "- item");
    CHECK(parsed({"--prompt", "-x"}).prompt == "-x");
    CHECK(parsed({"--prompt", "--"}).prompt == "--");
    CHECK(parsed({"--prompt", "--not a flag"}).prompt == "--not a flag");
    CHECK(parsed({"--prompt=--lr=3"}).prompt == "--lr=3");
    CHECK(parsed({"--prompt=--help"}).prompt == "--help");
    CHECK(parsed({"--prompt="}).prompt.empty());
    CHECK(parsed({"--prompt", ""}).prompt.empty());
    CHECK(parsed({"--out=", "--prompt", "x"}).out.empty());
    CHECK(parsed({"--prompt", "zwei\nZeilen, \"ü\""}).prompt == "zwei\nZeilen, \"ü\"");
    CHECK(parsed({"--lr", "-.5"}).lr == -0.5);
    CHECK(parsed({"--steps", "-5"}).steps == -5);
    CHECK(parsed({"--data", "[x,y]", "-5", "a=b", "--lr=1"}).data == std::vector<std::string>{"[x,y]", "-5", "a=b"});
  }

  TEST_CASE("a malformed value is refused, naming the flag and the value") {
    CHECK(refusal({"--lr=abc"}) == "--lr: expected a number, got \"abc\"");
    CHECK(refusal({"--lr=1e-3x"}) == "--lr: expected a number, got \"1e-3x\"");
    CHECK(refusal({"--lr="}) == "--lr: expected a number, got \"\"");
    CHECK(refusal({"--lr= 1"}) == "--lr: expected a number, got \" 1\"");
    CHECK(refusal({"--lr", "1,5"}) == "--lr: expected a number, got \"1,5\"");
    CHECK(refusal({"--lr=0x10"}) == "--lr: expected a number, got \"0x10\"");
    CHECK(contains(refusal({"--lr=nan"}), "--lr: expected a number, got nan"));
    CHECK(contains(refusal({"--min-lr", "-inf"}), "--min-lr: expected a number, got -inf"));
    CHECK(refusal({"--lr=1e999"}) == "--lr: 1e999 is out of range");
    CHECK(refusal({"--batch-size=1e3"}) == "--batch-size: expected a whole number, got \"1e3\"");
    CHECK(refusal({"--batch-size=1e9999"}) == "--batch-size: expected a whole number, got \"1e9999\"");
    CHECK(refusal({"--batch-size=4.0"}) == "--batch-size: expected a whole number, got \"4.0\"");
    CHECK(refusal({"--batch-size=2147483648"}) == "--batch-size: 2147483648 is out of range");
    CHECK(refusal({"--steps=9223372036854775808"}) == "--steps: 9223372036854775808 is out of range");
    CHECK(refusal({"--seed=-1"}) == "--seed: expected a whole number from 0 on, got \"-1\"");
    CHECK(refusal({"--depth=two"}) == "--depth: expected a whole number, got \"two\"");
    CHECK(refusal({"--recompute=yes"}) == "--recompute: expected true or false, got \"yes\"");
  }

  TEST_CASE("a missing value is refused") {
    CHECK(refusal({"--lr"}) == "--lr: a value is missing");
    CHECK(refusal({"--lr", "--seed", "1"}) == "--lr: a value is missing");
    CHECK(refusal({"--out", "--recompute"}) == "--out: a value is missing");
    CHECK(refusal({"--out", "--lr=1"}) == "--out: a value is missing");
    CHECK(refusal({"--data"}) == "--data: a value is missing");
  }

  TEST_CASE("a flag given twice is refused, a list of values goes on") {
    CHECK(refusal({"--lr=1", "--lr=1"}) == "--lr: given 2 times");
    CHECK(refusal({"--recompute", "--recompute=false", "--recompute"}) == "--recompute: given 3 times");
    CHECK(parsed({"--data", "a", "--data=b", "--data", "c", "d"}).data == std::vector<std::string>{"a", "b", "c", "d"});
  }

  TEST_CASE("an unknown flag is refused, with the nearest known one if it is near") {
    CHECK(refusal({"--lrr=1"}) == "--lrr: unknown flag; did you mean --lr?");
    CHECK(refusal({"--batch_size", "4"}) == "--batch_size: unknown flag; did you mean --batch-size?");
    CHECK(refusal({"--warmupsteps=4"}) == "--warmupsteps: unknown flag; did you mean --warmup-steps?");
    CHECK(refusal({"--sede=4"}) == "--sede: unknown flag; did you mean --seed?");
    CHECK(refusal({"--learing-rate=1e-3"}) == "--learing-rate: unknown flag");
    CHECK(refusal({"-lr", "3"}) == "-lr: unknown flag; did you mean --lr?");
    CHECK(refusal({"-x"}) == "-x: unknown flag");
    CHECK(refusal({"---lr=1"}) == "---lr: unknown flag; did you mean --lr?");
    CHECK(refusal({"--=1"}) == "--: unknown flag");
  }

  TEST_CASE("a stray word is refused unless the program takes words") {
    CHECK(refusal({"word"}) == "\"word\": a word that belongs to no flag");
    CHECK(refusal({"--recompute", "true"}) == "\"true\": a word that belongs to no flag");
    CHECK(refusal({"--lr", "1", "2"}) == "\"2\": a word that belongs to no flag");
    CHECK(refusal({""}) == "\"\": a word that belongs to no flag");
    std::vector<std::string> stray;
    const Config c = parsed({"in", "--lr=2", "-5", "--recompute", "a=b", "--", "--lr=3", "-h"}, &stray);
    CHECK(stray == std::vector<std::string>{"in", "-5", "a=b", "--lr=3", "-h"});
    CHECK(c.lr == 2);
    CHECK(c.recompute);
  }

  TEST_CASE("values do not depend on the locale") {
    const std::string before = std::setlocale(LC_ALL, nullptr);
    for (const std::string& entry : test::decimal_comma_locale())
      setenv(entry.substr(0, entry.find('=')).c_str(), entry.substr(entry.find('=') + 1).c_str(), 1);
    CHECK(std::setlocale(LC_ALL, "") != nullptr);
    CHECK(parsed({"--lr=1.5"}).lr == 1.5);
    CHECK(refusal({"--lr=1,5"}) == "--lr: expected a number, got \"1,5\"");
    CHECK(values_of(parsed({"--lr=1.5"}))["lr"].dump() == "1.5");
    std::setlocale(LC_ALL, before.c_str());
  }

  TEST_CASE("a config file counts as if typed, and the command line wins") {
    const TempDir dir;
    const std::string file = (dir / "run.json").string();
    write_file(file, R"({"lr": 0.25, "batch-size": 4, "seed": 18446744073709551615, "recompute": true, "out": "a=b",
                         "data": ["x", "y"], "depth": null, "min-lr": 1, "config": "other.json"})");
    const Config c = parsed({"--batch-size=2", "--config", file});
    CHECK(c.lr == 0.25);
    CHECK(c.batch_size == 2);
    CHECK(c.seed == 18446744073709551615u);
    CHECK(c.recompute);
    CHECK(c.out == "a=b");
    CHECK(c.data == std::vector<std::string>{"x", "y"});
    CHECK(!c.depth);
    CHECK(c.min_lr == 1.0);
    CHECK(c.steps == 1000);
  }

  TEST_CASE("what values_of returns can be read back as a config file") {
    const TempDir dir;
    const std::string file = (dir / "run.json").string();
    Config c = parsed({"--lr=0.1", "--data", "a", "--depth=3", "--seed=9007199254740993", "--prompt", "\n\"ü\""});
    write_file(file, values_of(c).dump());
    CHECK(contains(read_file(file), "\"lr\":0.1,"));
    CHECK(contains(read_file(file), "\"min-lr\":null"));
    Config back = parsed({"--config=" + file});
    CHECK(back.config == file);
    back.config = c.config;
    CHECK(values_of(back) == values_of(c));
  }

  TEST_CASE("a config file that is wrong is named") {
    const TempDir dir;
    const std::string file = (dir / "run.json").string();
    const auto with = [&](const std::string& text) {
      write_file(file, text);
      return refusal({"--config", file});
    };
    CHECK(with(R"({"learning-rate": 1})") == file + ": learning-rate: unknown flag");
    CHECK(with(R"({"steeps": 1})") == file + ": steeps: unknown flag; did you mean --steps?");
    CHECK(with(R"({"lr": "fast"})") == file + ": lr: expected a number, got \"fast\"");
    CHECK(with(R"({"batch-size": 1.5})") == file + ": batch-size: expected a whole number, got \"1.5\"");
    CHECK(with(R"({"lr": [1]})") == file + ": lr: expected one value, got [1]");
    CHECK(with(R"({"lr": null})") == file + ": lr: expected one value, got null");
    CHECK(with(R"({"data": [["x"]]})") == file + ": data: expected one value, got [\"x\"]");
    CHECK(with(R"({"recompute": 1})") == file + ": recompute: expected true or false, got \"1\"");
    CHECK(contains(with("[]"), file + ": a config file must hold one JSON object"));
    CHECK(with(R"({"lr": 1, "lr": 2})") == file + ": the key \"lr\" occurs twice in one object");
    CHECK(contains(with("lr = 1"), file + ": not JSON: byte 1"));
    CHECK(refusal({"--config=/no/such.json"}) == "/no/such.json: cannot open: No such file or directory");
  }

  TEST_CASE("given tells flags that were typed or stand in the config file from those that did not") {
    const TempDir dir;
    write_file(dir / "run.json", R"({"seed": 1, "depth": null})");
    Config config;
    Flags flags("train", "");
    flags.add(config);
    const std::string file = "--config=" + (dir / "run.json").string();
    const char* argv[] = {"train", "--lr=6e-4", file.c_str()};
    CHECK(flags.parse(3, argv));
    CHECK(flags.given("lr"));
    CHECK(flags.given("seed"));
    CHECK(!flags.given("steps"));
    CHECK(!flags.given("depth"));
    CHECK(contains(error_of([&] { flags.given("no-such"); }), "--no-such: "));
    CHECK(contains(error_of([&] { flags.add(config); }), "--recompute: declared twice"));
  }

  TEST_CASE("--help prints the purpose and every flag with its real default, and changes nothing") {
    Config config;
    config.batch_size = 12;
    std::vector<std::string> files;
    Flags flags("train", "Trains a model.");
    flags.add(config);
    flags.positional("files", files, "other words");
    const char* argv[] = {"train", "--lr=1", "--help"};
    bool run = true;
    const std::string help = printed([&] { run = flags.parse(3, argv); });
    CHECK(!run);
    CHECK(config.lr == 6e-4);
    CAPTURE(help);
    CHECK(contains(help, "Trains a model."));
    for (const char* line :
         {"--batch-size N", "sequences in a micro-batch (default 12)", "(default 0.0006)", "(default false)",
          "(default true)", "(default out)", "text (default empty)", "token files (no default)", "other words",
          "recurrences (no default)", "by default steps / 10\n", "(default 1337)", "(default 1000)"}) {
      CAPTURE(line);
      CHECK(contains(help, line));
    }
    const Json all = values_of(config);
    for (const auto& field : all.items()) CHECK(contains(help, "--" + field.key()));
  }

  TEST_CASE("values_of joins several configs in order") {
    const Json all = values_of(Small{}, Config{});
    CHECK(all.begin().key() == "width");
    CHECK(all.size() == 15);
    CHECK(all["depth"].is_null());
    CHECK(all["data"] == Json::array());
  }
}

}  // namespace
}  // namespace grt::test
