#include "tools/analysis/output.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"

namespace grt {
namespace {

constexpr std::array kFiles = {"analysis.json", "report.html",    "overview.svg", "exits.csv",      "gates.csv",
                               "dynamics.csv",  "difficulty.csv", "cka.csv",      "early_exit.csv", "heads.csv"};

// --- tables ----------------------------------------------------------------------------------------------------------

std::string cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n\r") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// A line for each row, of the keys that are no lists.
std::string table(const Json& rows) {
  std::string text;
  for (const Json& row : rows) {
    std::vector<std::string> names, cells;
    for (const auto& [key, value] : row.items()) {
      if (value.is_array()) continue;
      names.push_back(key);
      cells.push_back(cell(value));
    }
    if (text.empty()) text = fmt::format("{}\n", fmt::join(names, ","));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

void add_pairs(Json& rows, const Json& labels, const Json& others, const Json& matrix, const char* prefix) {
  for (std::size_t i = 0; i < labels.size(); ++i)
    for (std::size_t j = 0; j < others.size(); ++j)
      rows.push_back({{"state", labels[i]}, {"other", prefix + others[j].get<std::string>()}, {"cka", matrix[i][j]}});
}

// The rows of `list` with the keys of what each belongs to in front.
Json flattened(const Json& list, const char* inner) {
  Json rows = Json::array();
  for (const Json& outer : list)
    for (const Json& row : outer[inner]) {
      Json flat = outer;
      flat.erase(inner);
      flat.update(row);
      rows.push_back(flat);
    }
  return rows;
}

}  // namespace

void check_place(const std::string& out, bool overwrite) {
  check(!out.empty(), "--out: expected a directory");
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(out, ignored))) return;
  check(fs::is_directory(out), "--out {}: this is not a directory", out);
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    check(overwrite, "--out {}: is not empty ({}); use --overwrite to replace an earlier analysis", out, name);
    check(std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end(),
          "--out {}: {} is no part of an analysis, so --overwrite does not remove it", out, name);
  }
}

std::map<std::string, std::string> csv_files(const Json& analysis) {
  std::map<std::string, std::string> files;
  files["exits.csv"] = table(analysis["exits"]);
  if (analysis.contains("gates")) files["gates.csv"] = table(analysis["gates"]["steps"]);
  files["dynamics.csv"] = table(analysis["dynamics"]["steps"]);
  files["difficulty.csv"] = table(analysis["difficulty"]["deciles"]);
  files["heads.csv"] = table(flattened(analysis["heads"]["list"], "steps"));
  files["early_exit.csv"] = table(flattened(analysis["early_exit"], "points"));
  if (analysis.contains("cka")) {
    const Json& cka = analysis["cka"];
    Json rows = Json::array();
    add_pairs(rows, cka["labels"], cka["labels"], cka["matrix"], "");
    if (cka.contains("twin")) add_pairs(rows, cka["labels"], cka["twin"]["labels"], cka["twin"]["matrix"], "twin ");
    files["cka.csv"] = table(rows);
  }
  return files;
}

}  // namespace grt
