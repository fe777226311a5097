// The generate binary: what it prints, and its errors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/files.h"
#include "tests/support.h"
#include "tests/tools/on_cpu.h"
#include "tests/train/oracle_models.h"
#include "train/utf8.h"

namespace grt::test {
namespace {

std::string listed(const Json& ids, const char* separator) {
  std::string text;
  for (const Json& id : ids) text += (text.empty() ? "" : separator) + id.dump();
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Outcome generate(const std::string& model, std::vector<std::string> arguments, const std::string& directory = "") {
  arguments.insert(arguments.begin(), {"--checkpoint", oracle(model).string()});
  return run_tool("generate", arguments, {}, directory);
}

// The bytes of ids of the tokenizer `bytes`, in which 256 has none.
std::string bytes_of(const std::string& ids) {
  std::string bytes;
  std::istringstream stream(ids);
  for (int id = 0; stream >> id;)
    if (id < 256) bytes += static_cast<char>(id);
  return bytes;
}

std::string printable(const std::string& bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.flush();
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("generate --print-depths gives a token the same depth in the prompt as when it was made") {
    const Json decode = oracle_values("mor")["decode"];
    const Json made = decode["full"]["tokens"];
    const auto depths = [&](Json prompt, std::size_t tokens) {
      const Outcome o = generate("mor", {"--prompt-ids", listed(prompt, ","), "--tokens", std::to_string(tokens),
                                         "--temperature", "0", "--print-depths", "--stats"});
      REQUIRE_MESSAGE(o.code == 0, o.err);
      CHECK(o.err.find("steps of a token, prompts included:  1: ") != o.err.npos);
      return o.out;
    };
    Json whole = decode["prompt"];
    for (std::size_t i = 0; i + 1 < made.size(); ++i) whole.push_back(made[i]);
    const std::string all = depths(decode["prompt"], made.size());
    CHECK(all == depths(whole, 0));
    CHECK(all == depths(whole, 1));
    CHECK(std::count(all.begin(), all.end(), ' ') + 1 == static_cast<std::ptrdiff_t>(whole.size()));
    CHECK(all.find('1') != all.npos);
    CHECK(all.find_first_of("23") != all.npos);
    const Outcome dense = generate("dense", {"--prompt-ids", "1,2", "--tokens", "2", "--print-depths", "--depth", "2"});
    CHECK(dense.out == "2 2 2\n");
  }

  TEST_CASE("generate prints the reference continuation: the ids alone on one line, or with log-probabilities") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json decode = oracle_values(name)["decode"];
      const std::vector<std::string> flags = {
          "--prompt-ids", listed(decode["prompt"], ","), "--tokens", decode["n_tokens"].dump(), "--temperature", "0"};
      std::vector<std::string> with_ids = flags, with_logprobs = flags;
      with_ids.insert(with_ids.end(), {"--print-ids", "--kv", "full"});
      for (const char* kv : {"full", "mean", "last", "first"}) {
        with_ids.back() = kv;
        if (decode.contains(kv)) CHECK(generate(name, with_ids).out == listed(decode[kv]["tokens"], " ") + "\n");
      }
      with_logprobs.push_back("--print-logprobs");

      const std::vector<std::string> lines = lines_of(generate(name, with_logprobs).out);
      REQUIRE(lines.size() == decode["n_tokens"].get<std::size_t>());
      for (std::size_t i = 0; i < lines.size(); ++i) {
        int id = -1;
        double logprob = 0;
        std::istringstream(lines[i]) >> id >> logprob;
        CHECK(id == decode["full"]["tokens"][i]);
        CHECK(std::abs(logprob - decode["full"]["logprobs"][i].get<double>()) < kLogitTolerance);
      }
    }
  }

  TEST_CASE("generate prints the reference scores of given ids, one a line") {
    for (const std::string& name : kOracleModels) {
      CAPTURE(name);
      const Json expected = oracle_values(name)["score"];
      const Outcome outcome = generate(name, {"--prompt-ids", listed(expected["context"], ","), "--score-ids",
                                              listed(expected["continuation"], ",")});
      const std::vector<std::string> lines = lines_of(outcome.out);
      REQUIRE(lines.size() == expected["full"].size());
      for (std::size_t i = 0; i < lines.size(); ++i)
        CHECK(std::abs(std::stod(lines[i]) - expected["full"][i].get<double>()) < kLogitTolerance);
    }
  }

  // A model with random weights prints bytes that are mostly no UTF-8.
  TEST_CASE("text is the ids' bytes with what is no UTF-8 replaced") {
    const std::vector<std::string> flags = {"--prompt",   "Hi \xC3\xA4",   "--tokens",
                                            "200",        "--temperature", "3",
                                            "--overflow", "slide",         "--stop-at-end=false"};
    std::vector<std::string> with_ids = flags;
    with_ids.push_back("--print-ids");
    const Outcome text = generate("grt_concat_norm", flags);
    const std::string bytes = bytes_of(generate("grt_concat_norm", with_ids).out);
    CHECK(bytes.size() > 150);
    CHECK(text.code == 0);
    CHECK(text.out == printable(bytes) + "\n");
    CHECK(contains(text.out, "\xEF\xBF\xBD"));
  }

  TEST_CASE("a prompt is the same as text, as file and as ids; none is the beginning of a document") {
    const TempDir dir;
    write_file(dir / "p", "Hi \xC3\xA4\n");
    const std::vector<std::string> rest = {"--tokens", "20", "--print-ids"};
    const auto ids = [&](std::vector<std::string> prompt) {
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const Outcome outcome = generate("grt_concat_norm", prompt);
      CHECK(outcome.code == 0);
      return outcome.out;
    };
    const std::string expected = ids({"--prompt-ids", "72,105,32,195,164,10"});
    CHECK(ids({"--prompt", "Hi \xC3\xA4\n"}) == expected);
    CHECK(ids({"--prompt-file", (dir / "p").string()}) == expected);
    const std::string beginning = ids({"--prompt-ids", "256"});
    CHECK(beginning != expected);
    CHECK(ids({}) == beginning);
    CHECK(ids({"--prompt", ""}) == beginning);
    CHECK(ids({"--prompt-ids", ""}) == beginning);
    CHECK(ids({"--prompt", "a=b"}) == ids({"--prompt-ids", "97,61,98"}));
  }

  TEST_CASE("text ends with the document, ids only when told") {
    // At this temperature an end of document, one of 257 ids, comes within 2000 tokens.
    std::vector<std::string> flags = {"--prompt", "x",          "--tokens", "2000",       "--temperature",
                                      "1e6",      "--overflow", "slide",    "--print-ids"};
    const std::string all = generate("grt_concat_norm", flags).out;
    CHECK(lines_of(all).size() == 1);
    const std::size_t end = all.find(" 256 ");
    REQUIRE(end != all.npos);
    flags.push_back("--stop-at-end");
    CHECK(generate("grt_concat_norm", flags).out == all.substr(0, end) + "\n");
    flags.resize(flags.size() - 2);
    CHECK(generate("grt_concat_norm", flags).out == printable(bytes_of(all.substr(0, end))) + "\n");
  }

  TEST_CASE("samples are printed one after the other, each as if there were fewer") {
    const std::vector<std::string> flags = {"--prompt-ids", "1,2", "--tokens", "12", "--temperature", "2"};
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.begin(), flags.begin(), flags.end());
      return generate("grt_concat_norm", more).out;
    };
    const std::vector<std::string> three = lines_of(run({"--samples", "3", "--print-ids"}));
    const std::vector<std::string> two = lines_of(run({"--samples", "2", "--print-ids"}));
    REQUIRE(three.size() == 3);
    REQUIRE(two.size() == 2);
    CHECK(two[0] == three[0]);
    CHECK(two[1] == three[1]);
    CHECK(three[0] != three[1]);
    CHECK(lines_of(run({"--print-ids"})).at(0) == three[0]);

    std::string text;
    for (int i = 0; i < 3; ++i)
      text += fmt::format("--- sample {} of 3 ---\n{}\n", i + 1, printable(bytes_of(three[i])));
    CHECK(run({"--samples", "3", "--stop-at-end=false"}) == text);
  }

  TEST_CASE("generate counts speed and memory on stderr") {
    const Outcome outcome =
        generate("grt", {"--prompt-ids", "1,2,3", "--tokens", "8", "--temperature", "0", "--print-ids", "--stats"});
    CHECK(lines_of(outcome.out).size() == 1);
    CHECK(contains(outcome.err, "prompt: 3 tokens"));
    CHECK(contains(outcome.err, "made: 8 tokens in 1 sample(s)"));
    CHECK(contains(outcome.err, "ms/token"));
    // 9 block applications, keys and values, 10 tokens (the last one is not fed), 24 features of 4 bytes.
    CHECK(contains(outcome.err, fmt::format("key/value cache: {} bytes", 9 * 2 * 10 * 24 * 4)));
  }

  TEST_CASE("the lines of a .jsonl file are prompts that are continued side by side, each as it is alone") {
    const TempDir dir;
    const std::string file = (dir / "p.jsonl").string();
    write_file(file, "{\"text\": \"Hi\\n\"}\n{\"ids\": [1, 2, 3]}\n{\"text\": \"\"}\n");
    const std::vector<std::string> flags = {"--tokens", "12", "--temperature", "2", "--samples", "2"};
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      return generate("grt_concat_norm", more).out;
    };
    const std::vector<std::string> all = lines_of(run({"--prompt-file", file, "--print-ids"}));
    REQUIRE(all.size() == 6);
    const char* const alone[] = {"72,105,10", "1,2,3", "256"};
    for (std::size_t p = 0; p < 3; ++p) {
      const std::vector<std::string> mine = lines_of(run({"--prompt-ids", alone[p], "--print-ids"}));
      CHECK(mine[0] == all[2 * p]);
      CHECK(mine[1] == all[2 * p + 1]);
    }
    const std::string ids = run({"--prompt-file", file, "--print-ids"});
    for (const char* at_a_time : {"1", "2", "7"})
      CHECK(run({"--prompt-file", file, "--print-ids", "--batch-size", at_a_time}) == ids);
    CHECK(
        contains(generate("grt", {"--batch-size", "-1"}).err, "--batch-size: must be 0 (all prompts) or more, not -1"));
    const std::string text = run({"--prompt-file", file, "--stop-at-end=false"});
    CHECK(text.starts_with("--- prompt 1 of 3, sample 1 of 2 ---\n" + printable(bytes_of(all[0])) + "\n"));
    CHECK(text.ends_with("--- prompt 3 of 3, sample 2 of 2 ---\n" + printable(bytes_of(all[5])) + "\n"));
  }

  TEST_CASE("speculation prints the same text, and what it was worth") {
    const std::vector<std::string> flags = {"--prompt-ids",  "1,2,3", "--tokens",        "20",
                                            "--temperature", "0",     "--print-logprobs"};
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.begin(), flags.begin(), flags.end());
      return generate("grt", more);
    };
    const Outcome drafted = run({"--speculate", "3:1", "--stats"});
    CHECK(drafted.out == run({}).out);
    CHECK(contains(drafted.err, " taken ("));
    CHECK(contains(drafted.err, " at depth 1\n"));
    CHECK(contains(drafted.err, "plain decoding: "));
    CHECK(run({"--speculate", "auto"}).out == drafted.out);
    CHECK(contains(drafted.err, "all 1 continuation(s) are those of plain decoding, token for token\n"));
  }

  TEST_CASE("steps are counted the same of prompts side by side, one after another, and of drafts that were verified") {
    const TempDir dir;
    const std::string file = (dir / "p.jsonl").string();
    write_file(file, "{\"ids\": [7, 2]}\n{\"ids\": [1, 2, 3, 90, 14]}\n{\"ids\": [50]}\n");
    for (const std::string model : {"mor", "ouro"}) {
      CAPTURE(model);
      const auto run = [&](std::vector<std::string> more) {
        const std::vector<std::string> flags = {"--prompt-file", file, "--tokens", "15",
                                                "--temperature", "0",  "--stats",  "--print-depths"};
        more.insert(more.end(), flags.begin(), flags.end());
        const Outcome o = generate(model, more);
        REQUIRE_MESSAGE(o.code == 0, o.err);
        return o;
      };
      const Outcome all = run({});
      const std::vector<std::string> lines = lines_of(all.out);
      REQUIRE(lines.size() == 3);
      for (const auto& [line, tokens] : {std::pair(0, 16), {1, 19}, {2, 15}})
        CHECK(std::count(lines[line].begin(), lines[line].end(), ' ') + 1 == tokens);
      CHECK(run({"--batch-size", "1"}).out == all.out);
      for (const char* how : {"auto", "3:1", "2:2"})
        CHECK(run({"--speculate", how, "--batch-size", "2"}).out == all.out);
      CHECK(contains(run({"--speculate", "2", "--batch-size", "2"}).err, "all 3 continuation(s) are those of plain"));
      if (model == "mor") CHECK(all.out.find_first_of("2") != all.out.npos);
    }
    const auto early = [&](const char* rule) {
      return generate("ouro", {"--prompt-file", file, "--tokens", "15", "--print-depths", "--exit", rule}).out;
    };
    CHECK(early("prob:0").find_first_of("234") == std::string::npos);
    CHECK(early("prob:0.65").find_first_of("1234") != std::string::npos);
    CHECK(early("prob:0.65") != early("prob:1"));
  }

  TEST_CASE("exits print depths and agreement; at their extremes they are fixed depths") {
    const std::vector<std::string> flags = {"--prompt-ids",  "1,2,3", "--tokens",        "20",
                                            "--temperature", "0",     "--print-logprobs"};
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.begin(), flags.begin(), flags.end());
      return generate("grt", more);
    };
    const Outcome never = run({"--exit", "kl:0", "--stats"});
    CHECK(never.out == run({}).out);
    CHECK(contains(never.err, "depth: 3.000 on average;  3: 100.0 %"));
    CHECK(contains(never.err, "agreement with full depth: 100.00 % of the tokens"));
    CHECK(contains(never.err, "copied: 0"));
    CHECK(run({"--exit", "kl:1e9"}).out == run({"--depth", "2"}).out);
    CHECK(run({"--exit", "gate:2", "--kv", "last"}).out == run({"--depth", "1", "--kv", "last"}).out);
    const Outcome scored = generate("grt", {"--prompt-ids", "1,2,3", "--score-ids", "4,5", "--exit", "gate:2"});
    CHECK(scored.out == generate("grt", {"--prompt-ids", "1,2,3", "--score-ids", "4,5", "--depth", "1"}).out);
  }

  TEST_CASE("generate works from any directory, and makes no token when asked for none") {
    const std::vector<std::string> flags = {"--prompt-ids", "1,2,3", "--tokens", "5", "--print-ids"};
    const std::string here = generate("grt", flags).out;
    CHECK(lines_of(here).size() == 1);
    CHECK(generate("grt", flags, "/").out == here);
    std::vector<std::string> relative = {"--checkpoint", "grt"};
    relative.insert(relative.end(), flags.begin(), flags.end());
    CHECK(run_tool("generate", relative, {"LC_ALL=de_DE.UTF-8"}, fixture("oracle").string()).out == here);
    const Outcome none = generate("grt", {"--prompt-ids", "1", "--tokens", "0", "--print-ids"});
    CHECK(none.code == 0);
    CHECK(none.out == "\n");
  }

  TEST_CASE("generate ends with one line that names the cause") {
    const TempDir dir;
    const std::string grt = oracle("grt").string(), dense = oracle("dense").string();
    const std::string concat = oracle("grt_concat_norm").string();
    write_spoiled("grt", dir / "nan", "wpe.weight", std::numeric_limits<float>::quiet_NaN());
    write_file(dir / "twice.jsonl", "{\"ids\": [1], \"ids\": [2]}\n");
    write_file(dir / "range.jsonl", "{\"ids\": [1, 500]}\n");
    write_file(dir / "bad.jsonl", "{\"ids\": [1]}\n{\"txt\": \"a\"}\n");
    write_file(dir / "empty.jsonl", "");
    struct Row {
      std::vector<std::string> arguments;
      std::string says;
    };
    const Row rows[] = {
        {{"--prompt-ids", "1"}, "--checkpoint: expected"},
        {{"--checkpoint", grt, "--promt", "x"}, "--promt: unknown flag; did you mean --prompt?"},
        {{"--checkpoint", grt, "--exit", "kl:nan"}, "--exit: the threshold of kl must be a number from 0 on"},
        {{"--checkpoint", grt, "--exit", "step:2"}, "--exit: must be kl:x, gate:x or prob:x, not \"step:2\""},
        {{"--checkpoint", dense, "--prompt-ids", "1", "--print-ids", "--exit", "kl:1"}, "not of this dense model"},
        {{"--checkpoint", grt, "--weights", "int4"}, "--weights: must be f32, bf16 or int8, not \"int4\""},
        {{"--checkpoint", grt, "--weights", "int8", "--dtype", "f64"},
         "--weights: int8 goes with --dtype f32, not f64"},
        {{"--checkpoint", grt, "--speculate", "0"}, "--speculate: must be auto, k, k:r or auto:r"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--print-ids", "--speculate", "2:3"},
         "--speculate: drafts need a depth of 0..2, not 3"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--score-ids", "2", "--speculate", "2"},
         "--score-ids: makes no tokens"},
        {{"--checkpoint", grt, "--prompt-file", (dir / "bad.jsonl").string(), "--print-ids"},
         "bad.jsonl, line 2: expected {\"text\": ...} or {\"ids\": [...]}, got {\"txt\":\"a\"}"},
        {{"--checkpoint", grt, "--prompt-file", (dir / "twice.jsonl").string(), "--print-ids"},
         "twice.jsonl, line 1: the key \"ids\" occurs twice"},
        {{"--checkpoint", grt, "--prompt-file", (dir / "range.jsonl").string(), "--print-ids"},
         "range.jsonl, line 1: id 500 is outside [0, 97)"},
        {{"--checkpoint", grt, "--prompt-file", (dir / "empty.jsonl").string(), "--print-ids"},
         "empty.jsonl: has no line"},
        {{"--checkpoint", (dir / "none").string()}, "none: not a directory"},
        {{"--checkpoint", grt, "--prompt", "a", "--prompt-ids", "1"},
         "--prompt, --prompt-file, --prompt-ids: give one"},
        {{"--checkpoint", concat, "--prompt-file", (dir / "no").string()}, "no: cannot open: No such file"},
        {{"--checkpoint", grt, "--prompt", "a"},
         "has 257 ids, but the model's vocab_size is 97: give ids by --prompt-ids"},
        {{"--checkpoint", grt, "--prompt-ids", "1"}, "vocab_size is 97: print ids with --print-ids instead of text"},
        {{"--checkpoint", grt, "--print-ids"},
         "end-of-document id 256 that would begin a document is not below vocab_size"},
        {{"--checkpoint", grt, "--prompt-ids", "1,97", "--print-ids", "--tokens", "3"}, "id 97 is outside [0, 97)"},
        {{"--checkpoint", grt, "--prompt-ids", "-1", "--print-ids", "--tokens", "3"}, "id -1 is outside [0, 97)"},
        {{"--checkpoint", grt, "--prompt-ids", "1,,2"}, "--prompt-ids: must be token ids separated by commas"},
        {{"--checkpoint", grt, "--prompt-ids", "1,2,"}, "--prompt-ids: must be token ids separated by commas"},
        {{"--checkpoint", grt, "--prompt-ids", "1 2"}, "--prompt-ids: must be token ids separated by commas"},
        {{"--checkpoint", grt, "--prompt-ids", "99999999999"}, "--prompt-ids: must be token ids separated by commas"},
        {{"--checkpoint", grt, "--prompt-ids", "1,2", "--score-ids", "97"}, "--score-ids: id 97 is outside [0, 97)"},
        {{"--checkpoint", grt, "--prompt-ids", "1,2", "--score-ids", ""}, "--score-ids: no ids to score"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--score-ids", "2", "--print-ids"}, "--score-ids: makes no tokens"},
        {{"--checkpoint", grt, "--prompt-ids", "1,2", "--tokens", "30", "--print-ids"}, "context_length is 30"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--overflow", "wrap"}, "--overflow: must be error or slide"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--kv", "middle"},
         "--kv: must be full, mean, last or first, not \"middle\""},
        {{"--checkpoint", dense, "--prompt-ids", "1", "--kv", "mean", "--print-ids"},
         "--kv: this dense model keeps all"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--depth", "-1", "--print-ids"},
         "depth -1: this model has exits at 0"},
        {{"--checkpoint", dense, "--prompt-ids", "1", "--depth", "4", "--print-ids"},
         "depth 4: this model has exits at 1..3"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--temperature", "-0.5"}, "--temperature: must be a finite number"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--temperature", "inf"},
         "--temperature: expected a number, got inf"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--temperature", "1e9999"},
         "--temperature: 1e9999 is out of range"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--top-k", "-1"}, "--top-k: must be 0 (all tokens) or more"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--top-p", "0"}, "--top-p: must be above 0 and at most 1, not 0"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--seed", "-1"}, "--seed: expected a whole number from 0 on"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--samples", "0", "--print-ids"}, "--samples: must be 1..65536"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--samples", "2147483647"},
         "--samples: must be 1..65536, not 2147483647"},
        {{"--checkpoint", grt, "--prompt-ids", "1", "--tokens", "-1", "--print-ids"}, "--tokens: must be 0.."},
        {{"--checkpoint", (dir / "nan").string(), "--prompt-ids", "1", "--print-ids", "--tokens", "3"}, "wpe.weight"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.says);
      const Outcome outcome = run_tool("generate", on_cpu(row.arguments));
      CHECK(outcome.code == 1);
      CHECK(outcome.out.empty());
      CAPTURE(outcome.err);
      CHECK(outcome.err.starts_with("generate: "));
      CHECK(contains(outcome.err, row.says));
      CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
    }
  }
}

}  // namespace grt::test
