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

double average_of_run(std::span<const TaskResult> tasks, std::size_t run) {
  double sum = 0;
  for (const TaskResult& task : tasks) sum += task.runs.at(run).metrics.headline().value;
  return sum / static_cast<double>(tasks.size());
}

// Over the tasks, each of which counts as much.
double depth_of_run(std::span<const TaskResult> tasks, std::size_t run) {
  double sum = 0;
  for (const TaskResult& task : tasks) sum += task.runs.at(run).mean_depth;
  return sum / static_cast<double>(tasks.size());
}

// The run at a depth under a strategy, if there is one.
std::optional<std::size_t> find_run(std::span<const TaskRun> runs, KvStrategy kv, int depth) {
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].kv == kv && runs[i].depth == depth && !runs[i].exit) return i;
  return std::nullopt;
}

// What the other runs are measured by: full depth under the first strategy.
std::optional<double> full_average(std::span<const TaskResult> tasks, const LanguageModel& model) {
  const auto run = find_run(tasks[0].runs, tasks[0].runs[0].kv, model.depths().full);
  return run && average_of_run(tasks, *run) > 0 ? std::optional(average_of_run(tasks, *run)) : std::nullopt;
}

std::string way(const TaskRun& run) { return run.exit ? text_of(*run.exit) : std::to_string(run.depth); }

// Of each strategy of the cache: what half the steps keep of the average that all of them have.
std::map<KvStrategy, double> kept_at_half(std::span<const TaskResult> tasks, const LanguageModel& model) {
  std::map<KvStrategy, double> kept;
  const int full = model.depths().full;
  if (full < 2) return kept;
  for (const TaskRun& run : tasks[0].runs) {
    const auto all = find_run(tasks[0].runs, run.kv, full), half = find_run(tasks[0].runs, run.kv, full / 2);
    if (all && half && average_of_run(tasks, *all) > 0)
      kept[run.kv] = average_of_run(tasks, *half) / average_of_run(tasks, *all);
  }
  return kept;
}

// A line for each run. "kept": the share of full depth's average.
void print_runs(std::span<const TaskResult> tasks, const LanguageModel& model) {
  const DepthRange range = model.depths();
  const std::vector<TaskRun>& runs = tasks[0].runs;
  const std::optional<double> full = full_average(tasks, model);
  fmt::print("acc_norm where there is one, else acc, in percent; GFLOP a token, executed, at full context\n");
  fmt::print("{:<5}  {:>11}  {:>6}  {:>7}", "cache", "exit", "steps", "GFLOP");
  for (const TaskResult& task : tasks) fmt::print("  {:>6}", task.documents.task->name);
  fmt::print("  {:>7}{}\n", "average", full ? "    kept" : "");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Flops flops = model.flops(model.config().context_length, runs[i].depth);
    const bool counted = !runs[i].exit && model.routings().empty();  // else tokens choose how much is executed
    fmt::print("{:<5}  {:>11}  {:>6.4g}  {:>7}", name_of(runs[i].kv), way(runs[i]), depth_of_run(tasks, i),
               counted ? fmt::format("{:.4f}", (flops.executed_body + flops.executed_head) / 1e9) : "");
    for (const TaskResult& task : tasks)
      fmt::print("  {:>{}.2f}", 100 * task.runs[i].metrics.headline().value,
                 std::max<std::size_t>(6, task.documents.task->name.size()));
    fmt::print("  {:>7.2f}", 100 * average_of_run(tasks, i));
    if (full) fmt::print("  {:>5.1f}%", 100 * average_of_run(tasks, i) / *full);
    fmt::print("{}\n", runs[i].depth > range.full ? "  deeper than trained for" : "");
  }
  for (const auto& [kv, kept] : kept_at_half(tasks, model))
    fmt::print("half the steps, {} of {}, keep {:.1f} % of the average (cache {})\n", range.full / 2, range.full,
               100 * kept, name_of(kv));
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

// One line of print_runs().
Json run_json(std::span<const TaskResult> tasks, std::size_t i) {
  const TaskRun& run = tasks[0].runs[i];
  Json json = {{"kv", name_of(run.kv)},
               {"depth", run.depth},
               {"exit", run.exit ? Json(text_of(*run.exit)) : Json(nullptr)},
               {"mean_depth", depth_of_run(tasks, i)},
               {"average", average_of_run(tasks, i)},
               {"tasks", Json::object()}};
  for (const TaskResult& task : tasks) {
    Json& of_task = json["tasks"][task.documents.task->name] = Json::object();
    put_metrics(of_task, task.runs[i].metrics, "");
    of_task["mean_depth"] = task.runs[i].mean_depth;
  }
  return json;
}

}  // namespace

void print_tasks(std::span<const TaskResult> tasks, const LanguageModel& model, int depth) {
  print_metrics(tasks, depth);
  if (tasks[0].runs.size() > 1) print_runs(tasks, model);
  std::fflush(stdout);  // before the same place is written by another name, as by --json /dev/stdout
}

Json tasks_json(std::span<const TaskResult> tasks, const LanguageModel& model, int depth) {
  Json json = {{"tasks", Json::object()}, {"tasks_average", average(tasks, depth)}};
  for (const TaskResult& task : tasks) json["tasks"][task.documents.task->name] = task_json(task, depth);
  for (const auto& [at, unused] : tasks[0].by_depth)
    json["tasks_average_by_depth"][std::to_string(at)] = average(tasks, at);
  for (const auto& [kv, kept] : kept_at_half(tasks, model)) json["tasks_kept_at_half_depth"][name_of(kv)] = kept;
  json["tasks_runs"] = Json::array();
  for (std::size_t i = 0; i < tasks[0].runs.size(); ++i) json["tasks_runs"].push_back(run_json(tasks, i));
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
