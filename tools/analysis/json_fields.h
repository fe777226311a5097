// Reading an analysis with tolerance: whatever is missing, null or of another type is "not known" (NaN, "", nothing)
// and the report leaves it out.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/json.h"

namespace grt {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

inline const Json& field(const Json& of, const std::string& key) {
  static const Json nothing;
  if (!of.is_object()) return nothing;
  const auto found = of.find(key);
  return found == of.end() ? nothing : *found;
}

inline double as_number(const Json& value) { return value.is_number() ? value.get<double>() : kUnknown; }
inline std::string as_text(const Json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

inline double number_at(const Json& of, const std::string& key) { return as_number(field(of, key)); }
inline std::string text_at(const Json& of, const std::string& key) { return as_text(field(of, key)); }
inline bool true_at(const Json& of, const std::string& key, bool otherwise) {
  const Json& value = field(of, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

inline const Json& list_at(const Json& of, const std::string& key) {
  static const Json none = Json::array();
  const Json& value = field(of, key);
  return value.is_array() ? value : none;
}

inline std::vector<double> numbers_of(const Json& list) {
  std::vector<double> values;
  if (list.is_array())
    for (const Json& value : list) values.push_back(as_number(value));
  return values;
}

inline std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> values;
  if (list.is_array())
    for (const Json& value : list) values.push_back(as_text(value));
  return values;
}

// One number from each member of a list of objects.
inline std::vector<double> column(const Json& list, const std::string& key) {
  std::vector<double> values;
  for (const Json& row : list) values.push_back(number_at(row, key));
  return values;
}

}  // namespace grt
