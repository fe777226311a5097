// A strict reading of nlohmann-json: its parser does not recurse, its callback sees depth and keys as they come.
#include "core/json.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace grt {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxFile = 100'000'000;
constexpr std::size_t kMaxQuote = 200;  // of a text from the file in a message

std::string shortened(const std::string& text) {
  return text.size() <= kMaxQuote ? text : text.substr(0, kMaxQuote) + "...";
}

// What the library says, without its own prefix: "[json.exception.NAME.NUMBER] parse error at line 1, column 2: ".
std::string reason_of(const nlohmann::json::exception& e) {
  std::string text = e.what();
  if (const std::size_t end = text.find("] "); text.starts_with('[') && end != text.npos) text.erase(0, end + 2);
  if (const std::size_t end = text.find(": "); text.starts_with("parse error") && end != text.npos) {
    text.erase(0, end + 2);
  }
  return shortened(text);
}

template <class J>
J parse_strictly(std::string_view text, const std::string& file) {
  // The library takes a zero byte for the end of the text and would not look behind it.
  const std::size_t zero = text.find('\0');
  check(zero == text.npos, "{}: not JSON: byte {} is zero", file, zero);

  using Event = typename J::parse_event_t;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, J& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      check(depth < kMaxDepth, "{}: JSON is nested deeper than {}", file, kMaxDepth);
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      check(keys.back().insert(key).second, "{}: the key \"{}\" occurs twice in one object", file, shortened(key));
    }
    return true;
  };
  try {
    return J::parse(text, watch);
  } catch (const nlohmann::json::parse_error& e) {
    fail("{}: not JSON: byte {}: {}", file, e.byte, reason_of(e));
  } catch (const nlohmann::json::exception& e) {  // a number beyond the range of double
    fail("{}: not JSON: {}", file, reason_of(e));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) { return parse_strictly<Json>(text, file); }

nlohmann::json parse_sorted_json(std::string_view text, const std::string& file) {
  return parse_strictly<nlohmann::json>(text, file);
}

std::string to_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json read_json(const std::string& file) { return parse_json(read_file(file, kMaxFile), file); }

}  // namespace grt
