// Prints the tables of `inspect --tables` (train/tables.h).
#pragma once

#include <fmt/format.h>

#include <string>

#include "core/json.h"

namespace grt {

inline std::string figure(const Json& value, double unit, int digits) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>() / unit, digits);
}

inline void print_configurations(const Json& rows) {
  fmt::print(
      "Per token at full depth and full context: MFLOP forward by the paper's formula (without and with the head) and "
      "executed (with the head)\n");
  fmt::print("{:<24} {:>10} {:>7} {:>8} {:>12} {:>12} {:>8} {:>8} {:>9} | {:>8} {:>7}  {}\n", "preset", "layout",
             "blocks", "applied", "parameters", "no embedd.", "formula", "+ head", "executed", "printed", "printed",
             "remark");
  fmt::print("{:<24} {:>10} {:>7} {:>8} {:>12} {:>12} {:>8} {:>8} {:>9} | {:>8} {:>7}\n", "", "", "", "", "", "",
             "MFLOP", "MFLOP", "MFLOP", "M param", "MFLOP");
  for (const Json& r : rows) {
    const double paper = r["paper_body"], head = r["paper_head"];
    const double executed = r["executed_body"].get<double>() + r["executed_head"].get<double>();
    const std::string layout = r["layout"];
    const std::size_t wide = layout.find("×") == layout.npos ? 0 : 1;  // "×" has two bytes
    fmt::print("{:<24} {:>{}} {:>7} {:>8} {:>12} {:>12} {:>8.1f} {:>8.1f} {:>9.1f} | {:>8} {:>7}  {}\n",
               r["preset"].get<std::string>(), layout, 10 + wide, r["blocks"].get<int>(), r["applications"].get<int>(),
               r["parameters"].get<std::int64_t>(), r["parameters_without_embeddings"].get<std::int64_t>(), paper / 1e6,
               (paper + head) / 1e6, executed / 1e6, figure(r["printed_parameters"], 1e6, 0),
               figure(r["printed_flops"], 1e6, 0), r["remark"].get<std::string>());
  }
}

inline void print_properties(const Json& rows) {
  fmt::print("{:<28}", "");
  for (const Json& r : rows) fmt::print(" {:<20}", r["architecture"].get<std::string>());
  fmt::print("\n");
  for (const auto& [property, ignored] : rows[0].items()) {
    if (property == "architecture") continue;
    fmt::print("{:<28}", property);
    for (const Json& r : rows) fmt::print(" {:<20}", r[property].get<std::string>());
    fmt::print("\n");
  }
}

}  // namespace grt
