#include "tools/eval/report.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace grt {
namespace {

double average(std::span<const TaskResult> tasks, int depth) {
  double sum = 0;
  for (const TaskResult& task : tasks) sum += task.by_depth.at(depth).headline().value;
  return sum / static_cast<double>(tasks.size());
}

std::string percent(const Measure& m, std::int64_t n) {
  return fmt::format("{:6.2f} ± {:4.2f} {:>13}", 100 * m.value, 100 * m.standard_error,
                     fmt::format("({}/{})", m.correct, n));
}

void print_metrics(std::span<const TaskResult> tasks, int depth) {
  fmt::print("zero-shot tasks at depth {}: percent ± standard error (correct of documents)\n", depth);
  fmt::print("{:<17}  {:^27}  {:^27}  {:>20}\n", "task", "acc", "acc_norm", "perplexity");
  for (const TaskResult& task : tasks) {
    const Metrics& m = task.by_depth.at(depth);
    const std::string norm = m.acc_norm ? percent(*m.acc_norm, m.documents) : "";
    const std::string perplexity =
        m.perplexity ? fmt::format("{:.5g} ± {:.3g}", m.perplexity->value, m.perplexity->standard_error) : "";
    fmt::print("{:<17}  {:<27}  {:<27}  {:>20}\n", task.documents.task->name, percent(m.acc, m.documents), norm,
               perplexity);
  }
  fmt::print("average of acc_norm, or of acc where there is no other: {:.2f}\n", 100 * average(tasks, depth));
  for (const TaskResult& task : tasks)
    if (task.cut > 0)
      fmt::print("{}: {} of {} contexts lose their beginning, being too long for the model\n",
                 task.documents.task->name, task.cut, task.requests.size());
}

// "kept": the share of full depth's average.
void print_by_depth(std::span<const TaskResult> tasks, const LanguageModel& model) {
  const DepthRange range = model.depths();
  const std::map<int, Metrics>& depths = tasks[0].by_depth;
  const bool has_full = depths.contains(range.full) && average(tasks, range.full) > 0;
  fmt::print("by depth: acc_norm where there is one, else acc, in percent; GFLOP a token, executed, at full context\n");
  fmt::print("{:>5}  {:>7}", "depth", "GFLOP");
  for (const TaskResult& task : tasks) fmt::print("  {:>6}", task.documents.task->name);
  fmt::print("  {:>7}{}\n", "average", has_full ? "    kept" : "");
  for (const auto& [depth, unused] : depths) {
    const Flops flops = model.flops(model.config().context_length, depth);
    fmt::print("{:>5}  {:>7.4f}", depth, (flops.executed_body + flops.executed_head) / 1e9);
    for (const TaskResult& task : tasks)
      fmt::print("  {:>{}.2f}", 100 * task.by_depth.at(depth).headline().value,
                 std::max<std::size_t>(6, task.documents.task->name.size()));
    fmt::print("  {:>7.2f}", 100 * average(tasks, depth));
    if (has_full) fmt::print("  {:>5.1f}%", 100 * average(tasks, depth) / average(tasks, range.full));
    fmt::print("{}\n", depth > range.full ? "  deeper than trained for" : "");
  }
}

// Each metric under its name and `suffix`, with its standard error.
void put_metrics(Json& to, const Metrics& m, const std::string& suffix) {
  const auto put = [&](const std::string& name, const Measure& measure) {
    to[name + suffix] = measure.value;
    to[name + "_stderr" + suffix] = measure.standard_error;
  };
  put("acc", m.acc);
  if (m.acc_norm) put("acc_norm", *m.acc_norm);
  if (m.perplexity) put("perplexity", *m.perplexity);
}

Json task_json(const TaskResult& task, int depth) {
  const Metrics& m = task.by_depth.at(depth);
  Json json = Json::object();
  put_metrics(json, m, "");
  json["n"] = m.documents;
  json["n_correct"] = m.acc.correct;
  if (m.acc_norm) json["n_correct_norm"] = m.acc_norm->correct;
  json["documents_in_file"] = task.documents.in_file;
  json["requests"] = task.requests.size();
  json["contexts_cut"] = task.cut;
  json["headline"] = task.documents.task->headline();
  json["by_depth"] = Json::object();
  for (const auto& [at, metrics] : task.by_depth) put_metrics(json["by_depth"][std::to_string(at)], metrics, "");
  return json;
}

}  // namespace

void print_tasks(std::span<const TaskResult> tasks, const LanguageModel& model, int depth) {
  print_metrics(tasks, depth);
  if (tasks[0].by_depth.size() > 1) print_by_depth(tasks, model);
  std::fflush(stdout);  // before the same place is written by another name, as by --json /dev/stdout
}

Json tasks_json(std::span<const TaskResult> tasks, int depth) {
  Json json = {{"tasks", Json::object()}, {"tasks_average", average(tasks, depth)}};
  for (const TaskResult& task : tasks) json["tasks"][task.documents.task->name] = task_json(task, depth);
  for (const auto& [at, unused] : tasks[0].by_depth)
    json["tasks_average_by_depth"][std::to_string(at)] = average(tasks, at);
  return json;
}

Json harness_json(std::span<const TaskResult> tasks, int depth, std::int64_t limit, const Json& about) {
  Json results = Json::object(), shots = Json::object(), samples = Json::object(), better = Json::object();
  for (const TaskResult& task : tasks) {
    const std::string& name = task.documents.task->name;
    const Metrics& m = task.by_depth.at(depth);
    results[name] = {{"alias", name}};
    put_metrics(results[name], m, ",none");
    shots[name] = 0;
    samples[name] = {{"original", task.documents.in_file}, {"effective", m.documents}};
    better[name] = {{"acc", true}};
    if (m.acc_norm) better[name]["acc_norm"] = true;
    if (m.perplexity) better[name]["perplexity"] = false;
  }
  Json config = {{"model", "grt"}, {"model_args", about}};
  config["limit"] = limit > 0 ? Json(limit) : Json(nullptr);
  return {{"results", results},
          {"n-shot", shots},
          {"higher_is_better", better},
          {"n-samples", samples},
          {"config", config}};
}

std::string samples_text(std::span<const TaskResult> tasks, int depth, std::int64_t context_length) {
  std::string text;
  for (const TaskResult& task : tasks) {
    std::size_t next = 0;
    for (const Document& document : task.documents.documents) {
      for (std::size_t c = 0; c < document.choices.size(); ++c, ++next) {
        const Choice& choice = document.choices[c];
        const Request& request = task.requests[next];
        const std::vector<int> input = model_input(request, context_length);
        Json line = {{"task", task.documents.task->name},
                     {"doc", request.document},
                     {"choice", c},
                     {"context", choice.context},
                     {"continuation", choice.continuation},
                     {"context_ids", request.context},
                     {"continuation_ids", request.continuation}};
        const bool chooses = task.documents.task->chooses();
        line["gold"] = chooses ? Json(document.gold) : Json(nullptr);
        line["norm_chars"] = chooses ? Json(choice.norm_chars) : Json(nullptr);
        line["input_len"] = input.size();
        line["input_first"] = input.front();
        std::size_t k = 0;
        for (const auto& [at, unused] : task.by_depth) {
          const Score& score = task.scores[next][k++];
          const Json json = {{"ll", score.log_likelihood}, {"greedy", score.greedy}};
          if (at == depth) line.update(json);
          line["by_depth"][std::to_string(at)] = json;
        }
        text += to_text(line) + "\n";
      }
    }
  }
  return text;
}

}  // namespace grt
