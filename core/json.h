// JSON by nlohmann-json, read strictly: no duplicate keys, no deep nesting, errors that name the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace grt {

using Json = nlohmann::ordered_json;

// Throws Error "FILE: ..." for malformed text, a duplicate key, or nesting deeper than 64.
Json parse_json(std::string_view text, const std::string& file);
// The same with sorted keys, for objects that may have very many: Json searches its keys one by one.
nlohmann::json parse_sorted_json(std::string_view text, const std::string& file);
// Text of `json`; bytes that are not UTF-8 (of a path, say) become U+FFFD instead of an exception.
std::string to_text(const Json& json, int indent = -1);

Json read_json(const std::string& file);  // up to 100 MB

}  // namespace grt
