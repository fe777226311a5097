// The nine zero-shot tasks: where their documents are read from, and the requests that each document becomes.
//
// Prompts, splits and metrics are those of EleutherAI's lm-evaluation-harness without examples: the same strings, to
// the last space. A request asks for the log-likelihood of a continuation after a context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace grt {

struct Choice {
  std::string context, continuation;
  std::int64_t norm_chars;  // what acc_norm divides the log-likelihood by: the choice's length in code points
};

struct Document {
  std::vector<Choice> choices;
  int gold;  // the right choice; where there is one target and nothing to choose from, 0
};

// One line of a task's file, with errors that say where it stands.
struct TaskLine {
  const Json& json;
  std::string where;  // FILE:LINE

  bool has(const char* key) const { return json.contains(key); }
  const Json& at(const char* key) const;
  const Json& list(const char* key) const;
  std::string text(const char* key) const;
  int number(const char* key) const;  // also "3", or true as 1: data sets and their copies differ in this
};

enum class Metric {
  acc,       // share of documents whose right choice is the likeliest
  acc_norm,  // besides acc: the same with log-likelihoods divided by the choice's length
  target,    // one target: share of those that greedy decoding would give (acc), and perplexity
};

struct Task {
  std::string name;
  Metric metric;
  std::vector<std::string> files;  // tried in turn below the tasks' directory
  Document (*read)(const TaskLine& line);

  bool chooses() const { return metric != Metric::target; }
  const char* headline() const { return metric == Metric::acc_norm ? "acc_norm" : "acc"; }
};

const std::vector<Task>& all_tasks();  // by name

// Of "all" or a list of names, in the order of all_tasks(). Throws Error naming --tasks.
std::vector<const Task*> parse_tasks(const std::string& names);

struct TaskDocuments {
  const Task* task;
  std::string file;
  std::int64_t in_file;  // documents there are; fewer are read under a limit
  std::vector<Document> documents;
};

// The first `limit` documents (0: all). Throws Error naming what is missing or malformed.
TaskDocuments read_task(const Task& task, const std::string& directory, std::int64_t limit);

}  // namespace grt
