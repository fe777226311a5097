#include "tools/eval/python_text.h"

#include <algorithm>

#include "train/pretokenizer.h"
#include "train/utf8.h"

namespace grt {
namespace {

// str.isspace() holds for four control characters besides Unicode's White_Space.
bool is_space(const CodePoint& c) {
  if (c.state != CodePoint::State::whole) return false;
  return char_class(c.value) == CharClass::space || (0x1C <= c.value && c.value <= 0x1F);
}

char lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
char upper(char c) { return 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

}  // namespace

std::string_view left_stripped(std::string_view text) {
  while (!text.empty()) {
    const CodePoint first = first_code_point(text);
    if (!is_space(first)) break;
    text.remove_prefix(static_cast<std::size_t>(first.length));
  }
  return text;
}

std::string_view right_stripped(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    at += static_cast<std::size_t>(c.length);
    if (!is_space(c)) end = at;
  }
  return text.substr(0, end);
}

std::string capitalized(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  if (!result.empty()) result[0] = upper(result[0]);
  return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size()) {
    result += text.substr(at, found - at);
    result += to;
  }
  result += text.substr(at);
  return result;
}

std::int64_t code_points(std::string_view text) {
  std::int64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(static_cast<std::size_t>(first_code_point(text).length));
  return count;
}

}  // namespace grt
