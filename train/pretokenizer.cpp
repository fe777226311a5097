// The scanner's three rules, in the order in which the expression tries them: a contraction; a run of one class that is
// not white space, with one U+0020 before it or none; white space, which leaves its last character to the next piece
// when that is possible.
#include "train/pretokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "train/utf8.h"

namespace grt {

namespace {

constexpr CharClass search_class(char32_t code_point) {
  const auto* after = std::upper_bound(std::begin(unicode::kRanges), std::end(unicode::kRanges), code_point,
                                       [](char32_t c, const ClassRange& range) { return c < range.first; });
  if (after == std::begin(unicode::kRanges)) return CharClass::other;
  const ClassRange& range = *(after - 1);
  return code_point <= range.last ? range.char_class : CharClass::other;
}

constexpr std::array<CharClass, 128> kAscii = [] {
  std::array<CharClass, 128> classes{};
  for (char32_t c = 0; c < 128; ++c) classes[c] = search_class(c);
  return classes;
}();

struct Character {
  CharClass char_class;
  int length;
};

// The character at `at`, which lies inside the text; nothing if it is not all there yet.
std::optional<Character> character(std::string_view text, std::size_t at, bool last) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 128) return Character{kAscii[byte], 1};
  const CodePoint c = first_code_point(text.substr(at));
  if (c.state == CodePoint::State::incomplete && !last) return std::nullopt;
  if (c.state != CodePoint::State::whole) return Character{CharClass::other, c.length};
  return Character{search_class(c.value), c.length};
}

// Bytes of the contraction that `text`, which begins with an apostrophe, begins with; 0 for none, nothing if undecided.
std::optional<std::size_t> contraction(std::string_view text, bool last) {
  if (text.size() < 2) return last ? std::optional<std::size_t>(0) : std::nullopt;
  const char first = text[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (first != 'r' && first != 'v' && first != 'l') return 0;
  if (text.size() < 3) return last ? std::optional<std::size_t>(0) : std::nullopt;
  return text[2] == (first == 'l' ? 'l' : 'e') ? 3 : 0;
}

}  // namespace

CharClass char_class(char32_t code_point) { return code_point < 128 ? kAscii[code_point] : search_class(code_point); }

// Reads the optional space and the first character that decides the piece's class. False: undecided.
bool PieceScanner::start_run(std::string_view text, bool last) {
  std::size_t begin = 0;
  if (text[0] == ' ') {
    if (text.size() == 1 && !last) return false;
    if (text.size() > 1) {
      const auto next = character(text, 1, last);
      if (!next) return false;
      if (next->char_class != CharClass::space) begin = 1;
    }
  }
  const auto first = character(text, begin, last);
  if (!first) return false;
  class_ = first->char_class;
  last_character_ = first->length;
  scanned_ = begin + first->length;
  return true;
}

// Reads on while the class stays. False: what was read is all of `text`, and more may follow.
bool PieceScanner::extend_run(std::string_view text, bool last) {
  while (scanned_ < text.size()) {
    const auto next = character(text, scanned_, last);
    if (!next) return false;
    if (next->char_class != class_) return true;
    last_character_ = next->length;
    scanned_ += next->length;
  }
  return last;
}

std::size_t PieceScanner::next(std::string_view text, bool last) {
  if (text.empty()) return 0;
  if (scanned_ == 0) {
    if (text[0] == '\'') {
      const auto length = contraction(text, last);
      if (!length) return 0;
      if (*length > 0) return *length;
    }
    if (!start_run(text, last)) return 0;
  }
  if (!extend_run(text, last)) return 0;

  std::size_t end = scanned_;
  scanned_ = 0;
  const bool leaves_one = class_ == CharClass::space && end < text.size() && end > last_character_;
  if (leaves_one) end -= last_character_;
  return end;
}

}  // namespace grt
