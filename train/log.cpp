#include "train/log.h"

#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/error.h"

namespace grt {
namespace {

constexpr const char* kColumns[] = {"step",  "loss", "lr",      "grad_norm", "depth", "tokens", "tokens_per_second",
                                    "flops", "mfu",  "val_loss"};

std::string csv_row(const Json& record) {
  std::string row;
  for (const char* column : kColumns) {
    if (column != kColumns[0]) row += ',';
    if (const auto it = record.find(column); it != record.end() && it->is_number()) row += it->dump();
  }
  return row;
}

std::string csv_header() { return fmt::format("{}", fmt::join(kColumns, ",")); }

// The record of a line; null if it is none.
Json record_of(const std::string& line) {
  try {
    return parse_json(line, "train.jsonl");
  } catch (const Error&) {
    return nullptr;
  }
}

std::string kept_lines(const fs::path& path, std::int64_t step) {
  std::error_code ignored;
  if (step == 0 || !fs::exists(path, ignored)) return {};
  std::istringstream lines(read_file(path));
  std::string kept, line;
  while (std::getline(lines, line)) {
    if (lines.eof()) break;  // no newline: half a line
    const Json record = record_of(line);
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_unsigned()) continue;
    if (record["step"].get<std::uint64_t>() <= static_cast<std::uint64_t>(step)) kept += line + "\n";
  }
  return kept;
}

}  // namespace

RunLog::RunLog(const fs::path& out, std::int64_t step) : json_path_(out / "train.jsonl"), csv_path_(out / "train.csv") {
  const std::string kept = kept_lines(json_path_, step);
  write_file(json_path_, kept);
  std::string rows = csv_header() + "\n";
  std::istringstream lines(kept);
  for (std::string line; std::getline(lines, line);) rows += csv_row(record_of(line)) + "\n";
  write_file(csv_path_, rows);

  for (auto [path, file] : {std::pair{&json_path_, &json_}, std::pair{&csv_path_, &csv_}}) {
    file->reset(std::fopen(path->c_str(), "ab"));
    check(*file != nullptr, "{}: cannot be opened: {}", path->string(), std::strerror(errno));
  }
}

void RunLog::write(const Json& record) {
  append(json_, json_path_, to_text(record));
  append(csv_, csv_path_, csv_row(record));
}

void RunLog::append(const File& file, const fs::path& path, const std::string& line) {
  const bool ok = std::fwrite(line.data(), 1, line.size(), file.get()) == line.size() &&
                  std::fputc('\n', file.get()) != EOF && std::fflush(file.get()) == 0;
  check(ok, "{}: cannot be written: {}", path.string(), std::strerror(errno));
}

}  // namespace grt
