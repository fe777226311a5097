// The results of tasks for readers and for programs.
#pragma once

#include "tools/eval/run.h"

namespace grt {

// A table of all metrics at `depth` and, of several depths, strategies of the cache or exit rules, one of the headline
// metrics under each: acc_norm where a task has it, acc elsewhere.
void print_tasks(std::span<const TaskResult> tasks, const LanguageModel& model, int depth);

// {"tasks": {NAME: {"acc": x, ...}}, "tasks_average": x, "tasks_runs": [{"kv": ..., "depth": ..., ...}], ...}.
Json tasks_json(std::span<const TaskResult> tasks, const LanguageModel& model, int depth);

// As lm-evaluation-harness writes it: {"results": {NAME: {"acc,none": x, ...}}, ...}. `about` becomes its "config".
Json harness_json(std::span<const TaskResult> tasks, int depth, std::int64_t limit, const Json& about);

// One line for each request: its text, its ids, what the model was given of it and how likely it was.
std::string samples_text(std::span<const TaskResult> tasks, int depth, std::int64_t context_length);

}  // namespace grt
