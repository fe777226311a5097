// eval --tasks: its table, its files and its errors.
#include <cmath>

#include "core/safetensors.h"
#include "tests/models/toys.h"
#include "tests/tools/eval/task_data.h"
#include "tests/tools/on_cpu.h"

namespace grt::test {
namespace {

// A GRT with GPT-2's vocabulary and initial weights, four numbers wide.
void write_model(const fs::path& to, const std::string& tokenizer = "gpt2") {
  Json json = {{"architecture", "grt"}, {"d_model", 4}, {"n_heads", 2}, {"tokenizer", tokenizer}};
  if (tokenizer == "gpt2") json["vocab_size"] = 50257;
  json.update({{"context_length", 1024}, {"n_recurrences", 2}});
  const auto model = build(json, DType::f32);
  std::vector<NamedTensor> all;
  for (const Param& p : model->params().all()) all.push_back({p.name, p.var.value()});
  make_directories(to);
  write_safetensors(to / "model.safetensors", all);
  write_file(to / "config.json", model->config_json().dump());
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("eval --tasks prints all tasks and writes what it found") {
    const TempDir dir;
    write_model(dir / "C");
    const auto path = [&](const char* name) { return (dir / name).string(); };
    const Outcome outcome =
        run_tool("eval", {"--checkpoint", path("C"), "--tasks", "all", "--tasks-dir", fixture("tasks").string(),
                          "--depths", "0,2,3", "--device", "cpu", "--json", path("r.json"), "--harness-json",
                          path("h.json"), "--log-samples", path("s.jsonl")});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(outcome.err.empty());
    const Json r = read_json(path("r.json")), h = read_json(path("h.json"));
    const std::vector<Json> samples = json_lines(path("s.jsonl"));
    CHECK_FALSE(r.contains("loss"));
    REQUIRE(r["tasks"].size() == 9);
    double sum = 0;
    std::size_t line = 0;
    for (const Task& task : all_tasks()) {
      CAPTURE(task.name);
      const Json& t = r["tasks"][task.name];
      const TaskDocuments documents = read_task(task, fixture("tasks").string(), 0);
      std::vector<Score> scores;
      for (const Document& document : documents.documents) {
        for (std::size_t c = 0; c < document.choices.size(); ++c, ++line) {
          const Json& s = samples.at(line);
          CHECK(s["task"] == task.name);
          CHECK(s["context"] == document.choices[c].context);
          CHECK(s["by_depth"]["2"]["ll"] == s["ll"]);
          CHECK(s["by_depth"]["0"]["ll"] != s["ll"]);
          scores.push_back({s["ll"], s["greedy"]});
        }
      }
      const Metrics m = metrics_of(documents, scores);  // the log has all that the metrics are made of
      CHECK(t["acc"] == m.acc.value);
      CHECK(t["acc_stderr"] == m.acc.standard_error);
      CHECK(t["n"] == m.documents);
      CHECK(t["n_correct"] == m.acc.correct);
      CHECK(t["by_depth"]["2"]["acc"] == t["acc"]);
      CHECK(t["by_depth"].size() == 3);
      REQUIRE(t.contains("acc_norm") == m.acc_norm.has_value());
      if (m.acc_norm) CHECK(t["acc_norm"] == m.acc_norm->value);
      REQUIRE(t.contains("perplexity") == m.perplexity.has_value());
      if (m.perplexity) CHECK(t["perplexity"].get<double>() == doctest::Approx(m.perplexity->value));
      sum += m.headline().value;
      CHECK(contains(outcome.out, fmt::format("({}/{})", m.headline().correct, m.documents)));
      CHECK(h["results"][task.name]["acc,none"] == t["acc"]);
      CHECK(h["results"][task.name]["acc_stderr,none"] == t["acc_stderr"]);
      CHECK(h["results"][task.name].contains("acc_norm,none") == m.acc_norm.has_value());
      CHECK(h["n-shot"][task.name] == 0);
      CHECK(h["n-samples"][task.name]["effective"] == m.documents);
    }
    CHECK(line == samples.size());
    CHECK(r["tasks_average"].get<double>() == doctest::Approx(sum / 9));
    CHECK(contains(outcome.out, "deeper than trained for"));
    CHECK(contains(outcome.out, "boolq: 2 of 8 contexts lose their beginning"));
    CHECK(r["tasks"]["boolq"]["contexts_cut"] == 2);
  }

  TEST_CASE("eval --tasks puts depths, exit rules and strategies of the cache into one table") {
    const TempDir dir;
    write_model(dir / "C");
    const auto run = [&](const std::string& kv, const std::string& depths, const std::string& exit) {
      std::vector<std::string> arguments = {"--checkpoint", (dir / "C").string(),
                                            "--tasks",      "hellaswag,boolq",
                                            "--tasks-dir",  fixture("tasks").string(),
                                            "--limit",      "3",
                                            "--kv",         kv,
                                            "--depths",     depths,
                                            "--json",       (dir / "r").string()};
      if (!exit.empty()) arguments.insert(arguments.end(), {"--exit", exit});
      const Outcome outcome = run_tool("eval", arguments);
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      return std::pair(read_json(dir / "r"), outcome.out);
    };
    std::vector<std::string> kvs = {"full", "mean", "last", "first"};
    if (kSanitized) kvs.resize(2);
    const auto [all, out] = run(fmt::format("{}", fmt::join(kvs, ",")), "1,2", "kl:0,gate:2");
    const Json& runs = all["tasks_runs"];
    REQUIRE(runs.size() == 4 * kvs.size());
    for (std::size_t i = 0; i < kvs.size(); ++i) {
      CAPTURE(kvs[i]);
      const auto [alone, ignored] = run(kvs[i], "1,2", "");
      for (std::size_t j = 0; j < 4; ++j) {
        const Json& r = runs[4 * i + j];
        CHECK(r["kv"] == kvs[i]);
        CHECK(r["average"].get<double>() ==
              doctest::Approx(
                  (r["tasks"]["hellaswag"]["acc_norm"].get<double>() + r["tasks"]["boolq"]["acc"].get<double>()) / 2));
      }
      CHECK(runs[4 * i] == alone["tasks_runs"][0]);
      CHECK(runs[4 * i + 1] == alone["tasks_runs"][1]);
      CHECK(runs[4 * i]["depth"] == 1);
      CHECK(runs[4 * i + 2]["exit"] == "kl:0");
      CHECK(runs[4 * i + 2]["mean_depth"] == 2);
      CHECK(runs[4 * i + 2]["average"] == runs[4 * i + 1]["average"]);
      CHECK(runs[4 * i + 3]["mean_depth"] == 1);  // no gate is open by 2
      const double kept = runs[4 * i]["average"].get<double>() / runs[4 * i + 1]["average"].get<double>();
      CHECK(all["tasks_kept_at_half_depth"][kvs[i]].get<double>() == doctest::Approx(kept));
      CHECK(contains(
          out, fmt::format("half the steps, 1 of 2, keep {:.1f} % of the average (cache {})", 100 * kept, kvs[i])));
      CHECK(contains(out, fmt::format("\n{:<5}  {:>11}  {:>6}", kvs[i], "gate:2", 1)));
    }
    CHECK(all["tasks_average_by_depth"]["2"] == runs[1]["average"]);
    CHECK(all["tasks"]["boolq"]["acc"] == runs[1]["tasks"]["boolq"]["acc"]);
  }

  TEST_CASE("eval --limit takes the first documents, scored as among all, and tasks go beside a loss") {
    const TempDir dir;
    write_model(dir / "C");
    write_file(dir / "t.txt", "Some text to predict.");
    const auto run = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--checkpoint", (dir / "C").string(), "--tasks", "hellaswag", "--tasks-dir",
                                         fixture("tasks").string(), "--log-samples", (dir / "s").string(), "--json",
                                         (dir / "r").string()});
      const Outcome outcome = run_tool("eval", arguments);
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      return json_lines(dir / "s");
    };
    const std::vector<Json> all = run({});
    const std::vector<Json> two = run({"--limit", "2", "--batch-size", "3", "--text", (dir / "t.txt").string()});
    CHECK(all.size() == 16);
    CHECK(two == std::vector<Json>(all.begin(), all.begin() + 8));
    const Json r = read_json((dir / "r").string());
    CHECK(r["loss"].get<double>() == doctest::Approx(std::log(50257)).epsilon(0.01));
    CHECK(r["tasks"]["hellaswag"]["n"] == 2);
    CHECK(r["tasks"]["hellaswag"]["documents_in_file"] == 4);
  }

  TEST_CASE("eval refuses tasks that it cannot run in one line") {
    const TempDir dir;
    write_model(dir / "C");
    write_model(dir / "B", "bytes");
    const std::string data = fixture("tasks").string(), long_ending = std::string(1030, 'x');
    write_file(dir / "piqa.jsonl",
               fmt::format(R"({{"goal": "g", "sol1": "{}", "sol2": "b", "label": 0}})", long_ending));
    struct Case {
      std::string checkpoint;
      std::vector<std::string> arguments;
      std::string message;
    };
    const Case cases[] = {
        {"C", {"--tasks", "piqa"}, "--tasks-dir: expected the directory"},
        {"C", {"--tasks", "pica", "--tasks-dir", data}, "--tasks: there is no task \"pica\""},
        {"C", {"--tasks-dir", data, "--text", "x"}, "--tasks-dir: means nothing without --tasks"},
        {"C", {"--limit", "3", "--text", "x"}, "--limit: means nothing without --tasks"},
        {"C", {"--log-samples", "l", "--text", "x"}, "--log-samples: means nothing without --tasks"},
        {"C", {"--tasks", "piqa", "--tasks-dir", data, "--limit", "-1"}, "--limit: must be 0"},
        {"C", {"--tasks", "piqa", "--tasks-dir", data, "--logits", "l"}, "--logits: expected --data or --text"},
        {"C", {"--tasks", "boolq", "--tasks-dir", dir.path.string()}, "has no file for the task boolq"},
        {"B", {"--tasks", "piqa", "--tasks-dir", dir.path.string()}, "document 0 has a continuation of 1031 tokens"},
        {"C",
         {"--tasks", "piqa", "--tasks-dir", dir.path.string(), "--json", (dir / "piqa.jsonl").string()},
         "--json: " + (dir / "piqa.jsonl").string() + " is the input"},
        {"C",
         {"--tasks", "piqa", "--tasks-dir", data, "--log-samples", (dir / "o").string(), "--harness-json",
          (dir / "o").string()},
         "--log-samples, --harness-json: both name"},
    };
    for (const Case& c : cases) {
      std::vector<std::string> arguments = {"--checkpoint", (dir / c.checkpoint).string()};
      arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
      const Outcome outcome = run_tool("eval", on_cpu(arguments));
      CAPTURE(outcome.err);
      CHECK(outcome.code == 1);
      CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
      CHECK(contains(outcome.err, c.message));
    }
  }
}

}  // namespace grt::test
