#include "train/run_directory.h"

#include <string>
#include <vector>

#include "core/error.h"

namespace grt {

void claim_directory(const fs::path& out, bool overwrite) {
  make_directories(out);
  std::vector<fs::path> earlier;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") || name.starts_with(".step-") || name == "latest" || name == "best" ||
        name == "train.jsonl" || name == "train.csv")
      earlier.push_back(entry.path());
  }
  if (earlier.empty()) return;
  check(overwrite, "--out {}: holds an earlier run ({}); use --resume to go on with it or --overwrite to remove it",
        out.string(), earlier.front().filename().string());
  // What names a checkpoint goes before the checkpoint.
  for (const char* pointer : {"latest", "best"}) fs::remove(out / pointer);
  for (const fs::path& path : earlier) fs::remove_all(path);
}

}  // namespace grt
