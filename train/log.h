// The log of a run: one record, written as a line of OUT/train.jsonl and a row of OUT/train.csv. Numbers have the
// digits that give the double back. Lines are flushed as they are written.
#pragma once

#include <cstdio>
#include <memory>

#include "core/files.h"
#include "core/json.h"

namespace grt {

class RunLog {
 public:
  // Continues the files of a run whose last finished step is `step`: later lines, and half a line at the end, are cut
  // off. step 0 starts them anew.
  RunLog(const fs::path& out, std::int64_t step);

  // Keys in the order given: step, loss, lr, ... or step, val_loss, val_loss_by_depth.
  void write(const Json& record);

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  void append(const File& file, const fs::path& path, const std::string& line);

  fs::path json_path_, csv_path_;
  File json_, csv_;
};

}  // namespace grt
