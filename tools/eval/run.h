// The tasks of a command line under one model: their flags, and the work.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/eval/metrics.h"

namespace grt {

struct TaskFlags {
  std::optional<std::string> tasks, tasks_dir, log_samples, harness_json;
  std::int64_t limit = 0;

  template <class V>
  void fields(V&& v) {
    v("tasks", tasks,
      "zero-shot tasks: all, or of arc_challenge, arc_easy, boolq, hellaswag, lambada_openai, lambada_standard, "
      "openbookqa, piqa, winogrande");
    v("tasks-dir", tasks_dir, "directory with NAME.jsonl of each task, or the authors' files (tools/fetch_tasks.py)");
    v("limit", limit, "the first so many documents of each task; 0: all");
    v("log-samples", log_samples, "file to write each request to, a JSON object a line");
    v("harness-json", harness_json, "file to write the tasks' results to, as lm-evaluation-harness arranges them");
  }
};

void check_task_flags(const TaskFlags& flags);  // throws Error naming the flag

// A task at one depth, or with tokens that stop by a rule at `depth` at the latest, under one strategy of the cache.
struct TaskRun {
  KvStrategy kv;
  int depth;
  std::optional<ExitRule> exit;
  Metrics metrics;
  double mean_depth;  // of the tokens that predict
};

struct TaskResult {
  TaskDocuments documents;
  std::vector<Request> requests = {};
  std::vector<std::vector<Score>> scores = {};  // by request, then by depth in ascending order; of the first strategy
  std::map<int, Metrics> by_depth = {};         // of the first strategy
  std::vector<TaskRun> runs = {};               // by strategy: the depths, then the rules
  std::int64_t cut = 0;                         // requests whose context does not fit into the model's
};

// Documents and requests alone: what is missing is found before anything is computed.
std::vector<TaskResult> read_tasks(const TaskFlags& flags, const BackboneConfig& config);
// Adds scores and metrics, and shows progress on stderr. `bound`: the depth by which a token has stopped.
void score_tasks(std::vector<TaskResult>& tasks, const LanguageModel& model, ScoreOptions options,
                 std::span<const KvStrategy> kvs, std::span<const ExitRule> exits, int bound);

}  // namespace grt
