// Both layouts of each data set are read: that of its authors' release and that of its copy on the Hugging Face hub,
// written as JSON lines.
#include "tools/eval/tasks.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "tools/eval/prompts.h"

namespace grt {
namespace {

std::vector<std::string> lines_of(const fs::path& file) {
  const std::string text = read_file(file);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

fs::path find_file(const Task& task, const std::string& directory) {
  check(fs::is_directory(directory), "--tasks-dir: {} is not a directory", directory);
  std::string tried;
  for (const std::string& name : task.files) {
    if (fs::exists(fs::path(directory) / name)) return fs::path(directory) / name;
    tried += (tried.empty() ? "" : ", ") + name;
  }
  fail("--tasks-dir: {} has no file for the task {}; looked for {}", directory, task.name, tried);
}

// Labels in a file of their own, as PIQA's authors release them: FILE-labels.lst beside FILE.jsonl.
std::vector<std::string> labels_beside(const fs::path& file) {
  const fs::path labels = file.parent_path() / (file.stem().string() + "-labels.lst");
  return fs::exists(labels) ? lines_of(labels) : std::vector<std::string>{};
}

}  // namespace

const Json& TaskLine::at(const char* key) const {
  const auto it = json.find(key);
  check(it != json.end(), "{}: the field \"{}\" is missing", where, key);
  return *it;
}

const Json& TaskLine::list(const char* key) const {
  const Json& value = at(key);
  check(value.is_array(), "{}: \"{}\" must be a list, not {}", where, key, value.dump());
  return value;
}

std::string TaskLine::text(const char* key) const {
  const Json& value = at(key);
  check(value.is_string(), "{}: \"{}\" must be a string, not {}", where, key, value.dump());
  return value.get<std::string>();
}

int TaskLine::number(const char* key) const {
  const Json& value = at(key);
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  const std::string digits = value.is_string() ? value.get<std::string>() : value.dump();
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  check(error == std::errc() && end == digits.data() + digits.size(), "{}: \"{}\" must be a whole number, not {}",
        where, key, value.dump());
  return number;
}

const std::vector<Task>& all_tasks() {
  using enum Metric;
  static const std::vector<Task> tasks = {
      {"arc_challenge",
       acc_norm,
       {"arc_challenge.jsonl", "ARC-Challenge-Test.jsonl", "ARC-Challenge/ARC-Challenge-Test.jsonl",
        "ARC-V1-Feb2018-2/ARC-Challenge/ARC-Challenge-Test.jsonl"},
       arc_document},
      {"arc_easy",
       acc_norm,
       {"arc_easy.jsonl", "ARC-Easy-Test.jsonl", "ARC-Easy/ARC-Easy-Test.jsonl",
        "ARC-V1-Feb2018-2/ARC-Easy/ARC-Easy-Test.jsonl"},
       arc_document},
      {"boolq", acc, {"boolq.jsonl", "BoolQ/val.jsonl", "BoolQ/dev.jsonl"}, boolq_document},
      {"hellaswag", acc_norm, {"hellaswag.jsonl", "hellaswag_val.jsonl"}, hellaswag_document},
      {"lambada_openai", target, {"lambada_openai.jsonl", "lambada_test.jsonl"}, lambada_document},
      {"lambada_standard", target, {"lambada_standard.jsonl", "lambada_test_plain_text.txt"}, lambada_document},
      {"openbookqa", acc_norm, {"openbookqa.jsonl", "OpenBookQA-V1-Sep2018/Data/Main/test.jsonl"}, openbookqa_document},
      {"piqa", acc_norm, {"piqa.jsonl", "physicaliqa-train-dev/dev.jsonl"}, piqa_document},
      {"winogrande", acc, {"winogrande.jsonl", "winogrande_1.1/dev.jsonl"}, winogrande_document}};
  return tasks;
}

std::vector<const Task*> parse_tasks(const std::string& names) {
  std::set<std::string> wanted;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    check(wanted.insert(name).second, "--tasks: {} is named twice", name);
    begin = end + 1;
  }
  std::vector<const Task*> tasks;
  std::string known;
  const bool all = names == "all";
  for (const Task& task : all_tasks()) {
    if (wanted.erase(task.name) > 0 || all) tasks.push_back(&task);
    known += task.name + ", ";
  }
  check(all || wanted.empty(), "--tasks: there is no task \"{}\"; there are {}or all",
        wanted.empty() ? "" : *wanted.begin(), known);
  return tasks;
}

TaskDocuments read_task(const Task& task, const std::string& directory, std::int64_t limit) {
  const fs::path file = find_file(task, directory);
  const bool plain = file.extension() == ".txt";
  const std::vector<std::string> lines = lines_of(file), labels = labels_beside(file);
  TaskDocuments result{&task, file.string(), 0, {}};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find_first_not_of(" \t") == std::string::npos) continue;
    const auto document = static_cast<std::size_t>(result.in_file++);
    if (limit > 0 && result.in_file > limit) continue;
    const std::string where = fmt::format("{}:{}", file.string(), i + 1);
    Json json = plain ? Json{{"text", lines[i]}} : parse_json(lines[i], where);
    check(json.is_object(), "{}: expected a JSON object, found {}", where, json.type_name());
    if (!labels.empty() && !json.contains("label")) {
      check(document < labels.size(), "{}: there is no label for document {}", where, document);
      json["label"] = labels[document];
    }
    result.documents.push_back(task.read({json, where}));
  }
  check(!result.documents.empty(), "{}: there are no documents", file.string());
  check(labels.empty() || static_cast<std::int64_t>(labels.size()) == result.in_file,
        "{}: has {} documents, but there are {} labels beside it", file.string(), result.in_file, labels.size());
  return result;
}

}  // namespace grt
