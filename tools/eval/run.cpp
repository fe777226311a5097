#include "tools/eval/run.h"

#include "core/error.h"
#include "train/model_tokenizer.h"
#include "train/progress.h"

namespace grt {
namespace {

std::int64_t tokens_of(std::span<const Request> requests) {
  std::size_t tokens = 0;
  for (const Request& r : requests) tokens += r.context.size() + r.continuation.size();
  return static_cast<std::int64_t>(tokens);
}

}  // namespace

void check_task_flags(const TaskFlags& flags) {
  check(flags.limit >= 0, "--limit: must be 0 (all documents) or more, not {}", flags.limit);
  if (flags.tasks) {
    check(flags.tasks_dir.has_value(), "--tasks-dir: expected the directory with the files of --tasks");
    parse_tasks(*flags.tasks);
    return;
  }
  const auto check_unused = [](const char* flag, bool given) {
    check(!given, "{}: means nothing without --tasks", flag);
  };
  check_unused("--tasks-dir", flags.tasks_dir.has_value());
  check_unused("--limit", flags.limit != 0);
  check_unused("--log-samples", flags.log_samples.has_value());
  check_unused("--harness-json", flags.harness_json.has_value());
}

std::vector<TaskResult> read_tasks(const TaskFlags& flags, const BackboneConfig& config) {
  if (!flags.tasks) return {};
  const auto tokenizer = model_tokenizer(config, "evaluate ids with --data instead of --tasks");
  std::vector<TaskResult> results;
  for (const Task* task : parse_tasks(*flags.tasks)) {
    TaskResult result{.documents = read_task(*task, *flags.tasks_dir, flags.limit)};
    result.requests = encode_requests(*tokenizer, result.documents, config.context_length);
    for (const Request& r : result.requests)
      result.cut += r.context.size() + r.continuation.size() > static_cast<std::size_t>(config.context_length) + 1;
    results.push_back(std::move(result));
  }
  return results;
}

namespace {

std::vector<Score> column(const std::vector<std::vector<Score>>& scores, std::size_t d) {
  std::vector<Score> list;
  for (const std::vector<Score>& by_depth : scores) list.push_back(by_depth[d]);
  return list;
}

double mean_steps(const TaskResult& task, std::span<const Score> scores) {
  std::int64_t steps = 0;
  std::size_t tokens = 0;
  for (const Score& score : scores) steps += score.steps;
  for (const Request& request : task.requests) tokens += request.continuation.size();
  return static_cast<double>(steps) / static_cast<double>(tokens);
}

}  // namespace

void score_tasks(std::vector<TaskResult>& tasks, const LanguageModel& model, ScoreOptions options,
                 std::span<const KvStrategy> kvs, std::span<const ExitRule> exits, int bound) {
  Progress progress(2);
  std::int64_t all = 0, before = 0;
  for (const TaskResult& task : tasks)
    all += tokens_of(task.requests) * static_cast<std::int64_t>(kvs.size() * (1 + exits.size()));
  const std::vector<int> depths = options.depths;
  for (TaskResult& task : tasks) {
    const auto count = static_cast<std::int64_t>(task.requests.size());
    options.progress = [&](std::int64_t requests, std::int64_t tokens) {
      progress.live(fmt::format("{}: request {}/{}", task.documents.task->name, requests, count), before + tokens, all);
    };
    const auto scored = [&] {
      std::vector<std::vector<Score>> scores = score_requests(model, task.requests, options);
      before += tokens_of(task.requests);
      return scores;
    };
    for (const KvStrategy kv : kvs) {
      options.kv = kv;
      options.depths = depths;
      options.exit.reset();
      const std::vector<std::vector<Score>> scores = scored();
      for (std::size_t d = 0; d < depths.size(); ++d)
        task.runs.push_back(
            {kv, depths[d], {}, metrics_of(task.documents, column(scores, d)), static_cast<double>(depths[d])});
      if (kv == kvs[0]) task.scores = scores;
      for (const ExitRule& rule : exits) {
        options.depths = {bound};
        options.exit = rule;
        const std::vector<Score> under = column(scored(), 0);
        task.runs.push_back({kv, bound, rule, metrics_of(task.documents, under), mean_steps(task, under)});
      }
    }
    for (std::size_t d = 0; d < depths.size(); ++d) task.by_depth[depths[d]] = task.runs[d].metrics;
  }
}

}  // namespace grt
