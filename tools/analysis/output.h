// What an analysis leaves: a directory that is written whole or not at all.
#pragma once

#include <map>
#include <string>

#include "core/files.h"
#include "core/json.h"

namespace grt {

// The directory --out under construction, beside its place and under another name until commit().
class OutputDirectory {
 public:
  // Throws Error unless `out` is missing, empty, or with `overwrite` holds nothing but an earlier analysis.
  OutputDirectory(const std::string& out, bool overwrite);
  ~OutputDirectory();  // without commit() it leaves nothing
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const fs::path& path() const { return partial_; }  // where the files go for now
  void commit();

 private:
  fs::path out_, partial_;
  bool committed_ = false;
};

// The tables of an analysis by file name: exits.csv, gates.csv, dynamics.csv, cka.csv, difficulty.csv, heads.csv,
// early_exit.csv; those whose section it has.
std::map<std::string, std::string> csv_files(const Json& analysis);

}  // namespace grt
