// What an analysis leaves, besides analysis.json and the report.
#pragma once

#include <map>
#include <string>

#include "core/files.h"
#include "core/json.h"

namespace grt {

// Throws Error unless `out`, the value of --out, is missing, empty, or with `overwrite` holds nothing but an earlier
// analysis.
void check_place(const std::string& out, bool overwrite);

// The tables of an analysis by file name: exits.csv, gates.csv, dynamics.csv, cka.csv, difficulty.csv, heads.csv,
// early_exit.csv; those whose section it has.
std::map<std::string, std::string> csv_files(const Json& analysis);

}  // namespace grt
