// The data that the tests of the evaluation tasks share.
#pragma once

#include <filesystem>
#include <optional>

#include "core/files.h"
#include "core/json.h"
#include "tests/support.h"
#include "tools/eval/run.h"
#include "train/tokenizer.h"

namespace grt::test {

// Real data sets may not be copied into the project; tests over them look for a folder beside it, and say so where
// there is none.
inline std::optional<fs::path> real_tasks() {
  const fs::path folder = fs::path(GRT_TEST_DIR) / "../../shared/evaldata";
  if (fs::is_directory(folder)) return folder;
  MESSAGE("skipped: there is no " << folder.lexically_normal().string());
  return {};
}

inline std::vector<Json> json_lines(const fs::path& file) {
  std::vector<Json> lines;
  const std::string text = read_file(file);
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines.push_back(parse_json(text.substr(begin, end - begin), file.string()));
  }
  return lines;
}

inline const Tokenizer& gpt2() {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("gpt2");
  return *tokenizer;
}

inline const Task& task_named(const std::string& name) { return *parse_tasks(name).front(); }

// A model whose scores are known: it does arithmetic on the ids.
inline Score fake_score(const Request& request) {
  std::int64_t sum = 0, hundredths = 0;
  const auto context = static_cast<std::int64_t>(request.context.size());
  for (std::size_t p = 0; p < request.continuation.size(); ++p) {
    const std::int64_t id = request.continuation[p];
    hundredths += (31 * id + 17 * static_cast<std::int64_t>(p) + 7 * context) % 1009;
    sum += id;
  }
  return {-static_cast<double>(hundredths) / 100, (sum + context) % 3 == 0};
}

}  // namespace grt::test
