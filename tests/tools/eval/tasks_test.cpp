// The evaluation tasks up to the model: prompts, ids and metrics.
#include <cmath>

#include "tests/tools/eval/task_data.h"
#include "tools/eval/prompts.h"
#include "tools/eval/python_text.h"

namespace grt::test {
namespace {

constexpr std::int64_t kContext = 1024;

// Every request of the task in `directory` is that of the expected file, to the last id.
void check_requests(const Task& task, const fs::path& directory, const fs::path& expected_directory,
                    std::int64_t limit) {
  const TaskDocuments documents = read_task(task, directory.string(), limit);
  const std::vector<Request> requests = encode_requests(gpt2(), documents, kContext);
  const std::vector<Json> expected = json_lines(expected_directory / (task.name + ".requests.jsonl"));
  REQUIRE(requests.size() == expected.size());
  std::size_t next = 0;
  for (const Document& document : documents.documents) {
    for (std::size_t c = 0; c < document.choices.size(); ++c, ++next) {
      const Json& e = expected[next];
      CAPTURE(next);
      CHECK(e["choice"] == c);
      CHECK(e["doc"] == requests[next].document);
      CHECK(document.choices[c].context == e["context"].get<std::string>());
      CHECK(document.choices[c].continuation == e["continuation"].get<std::string>());
      CHECK(Json(requests[next].context) == e["context_ids"]);
      CHECK(Json(requests[next].continuation) == e["continuation_ids"]);
      const std::vector<int> input = model_input(requests[next], kContext);
      CHECK(input.size() == e["input_len"]);
      CHECK(input.front() == e["input_first"]);
      if (!e["norm_chars"].is_null()) CHECK(document.choices[c].norm_chars == e["norm_chars"]);
      if (!e["gold"].is_null()) CHECK(document.gold == e["gold"]);
      CHECK(fake_score(requests[next]).log_likelihood == doctest::Approx(e["fake_ll"].get<double>()).epsilon(1e-12));
      CHECK(fake_score(requests[next]).greedy == e["fake_greedy"]);
    }
  }
}

void check_metrics(const Task& task, const fs::path& directory, std::int64_t limit, const Json& expected) {
  const TaskDocuments documents = read_task(task, directory.string(), limit);
  std::vector<Score> scores;
  for (const Request& request : encode_requests(gpt2(), documents, kContext)) scores.push_back(fake_score(request));
  const Metrics metrics = metrics_of(documents, scores);
  CHECK(metrics.documents == expected["n"]);
  CHECK(metrics.acc.correct == expected["n_correct"]);
  CHECK(metrics.acc.value == doctest::Approx(expected["acc"].get<double>()).epsilon(1e-14));
  REQUIRE(metrics.acc_norm.has_value() == expected.contains("acc_norm"));
  if (metrics.acc_norm)
    CHECK(metrics.acc_norm->value == doctest::Approx(expected["acc_norm"].get<double>()).epsilon(1e-14));
  REQUIRE(metrics.perplexity.has_value() == expected.contains("perplexity"));
  if (metrics.perplexity)
    CHECK(metrics.perplexity->value == doctest::Approx(expected["perplexity"].get<double>()).epsilon(1e-10));
}

// What request_hash.py says of the documents' pairs.
std::string request_hash(const Task& task, const fs::path& directory) {
  Json all = Json::array();
  for (const Document& document : read_task(task, directory.string(), 0).documents) {
    Json pairs = Json::array();
    for (const Choice& c : document.choices) pairs.push_back({c.context, c.continuation});
    if (task.name == "boolq") std::swap(pairs[0], pairs[1]);  // the harness of that time asked yes before no,
    if (!task.chooses()) pairs.push_back(pairs[0]);           // and a target once for each metric
    all.push_back(pairs);
  }
  const TempDir dir;
  write_file(dir / "requests.json", all.dump());
  const Outcome outcome =
      run_tool("/usr/bin/python3", {GRT_TEST_DIR "/tools/eval/request_hash.py", (dir / "requests.json").string()});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome.out.substr(0, outcome.out.find('\n'));
}

Document read_line(const std::string& task, const std::string& text) {
  return task_named(task).read({parse_json(text, "FILE"), "FILE:1"});
}

}  // namespace

TEST_SUITE("tools") {
  TEST_CASE("requests of the hand-made documents are the expected ones, to the last id") {
    for (const Task& task : all_tasks()) {
      CAPTURE(task.name);
      check_requests(task, fixture("tasks"), fixture("tasks"), 0);
    }
  }

  TEST_CASE("metrics of the hand-made documents under a model that does arithmetic are the expected ones") {
    const Json expected = read_json(fixture("tasks/metrics.json").string())["synthetic"];
    for (const Task& task : all_tasks()) {
      CAPTURE(task.name);
      check_metrics(task, fixture("tasks"), 0, expected.at(task.name));
    }
  }

  TEST_CASE("requests and metrics of real documents are the expected ones") {
    const auto real = real_tasks();
    if (!real) return;
    const Json expected = read_json((*real / "golden/metrics.json").string());
    for (const Task& task : all_tasks()) {
      CAPTURE(task.name);
      const bool sample = task.name == "hellaswag";  // of which there are samples alone
      const fs::path directory = sample ? *real : *real / "full";
      check_requests(task, directory, *real / "golden", 200);
      check_metrics(task, directory, 200, expected["sample"][task.name]);
      if (!sample) check_metrics(task, directory, 0, expected["full"][task.name]);
    }
  }

  TEST_CASE("all requests of a full data set have the published hash") {
    const auto real = real_tasks();
    if (!real) return;
    const Json expected = read_json((*real / "request_sha256.json").string());
    int compared = 0;
    for (const Task& task : all_tasks()) {
      if (!fs::exists(*real / "full" / (task.name + ".jsonl"))) continue;
      CAPTURE(task.name);
      CHECK(request_hash(task, *real / "full") == expected[task.name].get<std::string>());
      ++compared;
    }
    CHECK(compared == 8);
  }

  TEST_CASE("the authors' layouts give the same documents as those of the hub") {
    const auto same = [](const std::string& task, const std::string& hub, const std::string& authors) {
      const Document a = read_line(task, hub), b = read_line(task, authors);
      CHECK(a.gold == b.gold);
      REQUIRE(a.choices.size() == b.choices.size());
      for (std::size_t i = 0; i < a.choices.size(); ++i) {
        CHECK(a.choices[i].context == b.choices[i].context);
        CHECK(a.choices[i].continuation == b.choices[i].continuation);
        CHECK(a.choices[i].norm_chars == b.choices[i].norm_chars);
      }
    };
    const std::string nested =
        R"({"question": {"stem": "Q?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]},
            "answerKey": "2"})";
    same("arc_easy", R"({"question": "Q?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})",
         nested);
    same("openbookqa",
         R"({"question_stem": "Q?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})", nested);
    same("boolq", R"({"question": "is it", "passage": "T -- p", "label": 1})",
         R"({"question": "is it", "passage": "T -- p", "label": true})");
    same("boolq", R"({"question": "is it", "passage": "T -- p", "label": 0})",
         R"({"question": "is it", "title": "T", "passage": "p", "answer": false})");
    same("hellaswag", R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e"], "label": "1"})",
         R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e"], "label": 1})");
  }

  TEST_CASE("labels and plain passages are read from the authors' files") {
    const TempDir dir;
    make_directories(dir / "physicaliqa-train-dev");
    write_file(
        dir / "physicaliqa-train-dev/dev.jsonl",
        "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\r\n\n{\"goal\": \"h\", \"sol1\": \"a\", \"sol2\": \"b\"}");
    write_file(dir / "physicaliqa-train-dev/dev-labels.lst", "1\n0\n");
    const TaskDocuments piqa = read_task(task_named("piqa"), dir.path.string(), 0);
    REQUIRE(piqa.documents.size() == 2);
    CHECK(piqa.documents[0].gold == 1);
    CHECK(piqa.documents[1].gold == 0);
    for (const char* labels : {"1\n", "1\n0\n1\n"}) {  // of another split
      write_file(dir / "physicaliqa-train-dev/dev-labels.lst", labels);
      CHECK(contains(error_of([&] { read_task(task_named("piqa"), dir.path.string(), 0); }), " label"));
    }

    write_file(dir / "lambada_test_plain_text.txt", "he said \"no\" to tom\nshe left\n");
    const TaskDocuments lambada = read_task(task_named("lambada_standard"), dir.path.string(), 1);
    CHECK(lambada.in_file == 2);
    REQUIRE(lambada.documents.size() == 1);
    CHECK(lambada.documents[0].choices[0].context == "he said \"no\" to");
    CHECK(lambada.documents[0].choices[0].continuation == " tom");
  }

  TEST_CASE("HellaSwag's clean-up takes its steps in their order") {
    CHECK(hellaswag_text("\u00a0 freezer. [title] Leave [step] it\x1f") == "freezer.. Leave it");
    CHECK(hellaswag_text("[title] Add soap. [step] X") == " Add soap. X");
    CHECK(hellaswag_text("a   b    c") == "a  b  c");
    CHECK(hellaswag_text("a [b [c] d] e [f\n] g") == "a d] e [f\n] g");
    CHECK(capitalized("the Woman in RED") == "The woman in red");
    CHECK(capitalized("") == "");
  }

  TEST_CASE("white space at the end of a context is scored, and an empty context is the end of a document") {
    const Request moved = encode_request(gpt2(), "Bees help plants to ", " swim");
    CHECK(moved.context == std::vector<int>{33, 2841, 1037, 6134, 284});
    CHECK(moved.continuation == std::vector<int>{220, 9422});
    for (const char* context : {"", " \n"}) {
      const Request first = encode_request(gpt2(), context, " swim");
      CHECK(first.context == std::vector<int>{50256});
      CHECK(first.continuation == gpt2().encode(std::string(context) + " swim"));
    }
  }

  TEST_CASE("a context that does not fit loses its beginning, and keeps room for the whole continuation") {
    Request request{0, {}, {7, 8, 9}};
    for (int i = 0; i < 20; ++i) request.context.push_back(100 + i);
    CHECK(model_input(request, 22).size() == 22);
    CHECK(model_input(request, 22).front() == 100);
    CHECK(model_input(request, 21).front() == 101);
    CHECK(model_input(request, 3) == std::vector<int>{119, 7, 8});
  }

  TEST_CASE("of equal log-likelihoods the first choice wins, and length can turn the choice") {
    TaskDocuments task{&task_named("piqa"), "", 1, {}};
    task.documents = {{{{"", "", 2}, {"", "", 4}}, 0}, {{{"", "", 2}, {"", "", 4}}, 1}};
    const std::vector<Score> scores = {{-1, false}, {-1, false}, {-3, false}, {-4, false}};
    const Metrics m = metrics_of(task, scores);
    CHECK(m.acc.correct == 1);
    CHECK(m.acc_norm->correct == 1);
    CHECK(m.acc.standard_error == doctest::Approx(0.5));  // sqrt(0.5 * 0.5 / 1)
    task.documents[0].gold = 1;
    CHECK(metrics_of(task, scores).acc_norm->correct == 2);
    CHECK(metrics_of(task, scores).acc.correct == 0);
  }

  TEST_CASE("perplexity is that of whole targets, and its standard error that of their mean") {
    TaskDocuments task{&task_named("lambada_openai"), "", 2, {{{{"", "", 1}}, 0}, {{{"", "", 1}}, 0}}};
    const Metrics m = metrics_of(task, std::vector<Score>{{-1, true}, {-3, false}});
    CHECK(m.acc.value == 0.5);
    CHECK(m.perplexity->value == doctest::Approx(std::exp(2)));
    CHECK(m.perplexity->standard_error == doctest::Approx(std::exp(2)));  // sd sqrt(2), over sqrt(2)
  }

  TEST_CASE("a document that cannot be right is an error that names its line") {
    struct Case {
      const char *task, *line, *message;
    };
    const Case cases[] = {
        {"piqa", R"({"goal": "g", "sol1": "a", "label": 0})", "FILE:1: the field \"sol2\" is missing"},
        {"piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 2})", "the right choice is 2, but there are 2"},
        {"piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": -1})", "the right choice is -1"},
        {"piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": "x"})",
         "\"label\" must be a whole number, not \"x\""},
        {"piqa", R"({"goal": 3, "sol1": "a", "sol2": "b", "label": 0})", "\"goal\" must be a string, not 3"},
        {"winogrande", R"({"sentence": "no", "option1": "a", "option2": "b", "answer": "1"})", "has no blank"},
        {"winogrande", R"({"sentence": "_", "option1": "a", "option2": "b", "answer": ""})", "\"answer\" must be"},
        {"winogrande", R"({"sentence": "_", "option1": "a", "option2": "b", "answer": "3"})", "must be 1 or 2, not 3"},
        {"boolq", R"({"question": "q", "passage": "p", "answer": true})", "without its title"},
        {"arc_easy", R"({"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"})",
         "answerKey \"B\" is none of the labels"},
        {"arc_easy", R"({"question": "q", "choices": {"text": ["a"], "label": []}, "answerKey": "A"})", "0 labels"},
        {"arc_easy", R"({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "A"]}, "answerKey": "A"})",
         "two choices have the label \"A\""},
        {"hellaswag", R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "c", "endings": [1], "label": 0})",
         "endings must hold strings, not 1"},
        {"hellaswag", R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "c", "endings": "xyz", "label": 0})",
         "\"endings\" must be a list, not \"xyz\""},
        {"arc_easy", R"({"question": "q", "choices": {"text": "a", "label": "A"}, "answerKey": "A"})",
         "\"text\" must be a list, not \"a\""},
    };
    for (const Case& c : cases) {
      const std::string error = error_of([&] { read_line(c.task, c.line); });
      CAPTURE(error);
      CHECK(contains(error, "FILE:1: "));
      CHECK(contains(error, c.message));
    }
  }

  TEST_CASE("a task that is unknown, named twice or without a file is an error") {
    CHECK(parse_tasks("all").size() == 9);
    CHECK(parse_tasks("piqa,boolq")[0]->name == "boolq");
    CHECK(contains(error_of([] { parse_tasks("piqa,mmlu"); }), "--tasks: there is no task \"mmlu\"; there are arc_"));
    CHECK(contains(error_of([] { parse_tasks(""); }), "there is no task \"\""));
    CHECK(contains(error_of([] { parse_tasks("piqa,piqa"); }), "--tasks: piqa is named twice"));
    const TempDir dir;
    const auto read = [&](const std::string& content) {
      write_file(dir / "piqa.jsonl", content);
      return error_of([&] { read_task(task_named("piqa"), dir.path.string(), 0); });
    };
    CHECK(contains(error_of([&] { read_task(task_named("piqa"), dir.path.string(), 0); }),
                   "has no file for the task piqa; looked for piqa.jsonl, "));
    CHECK(contains(error_of([&] { read_task(task_named("piqa"), (dir / "no").string(), 0); }), "is not a directory"));
    CHECK(contains(read(""), "there are no documents"));
    CHECK(contains(read("\n{\"goal\""), "piqa.jsonl:2: "));
    CHECK(contains(read("[1]\n"), "piqa.jsonl:1: expected a JSON object, found array"));
  }
}

}  // namespace grt::test
