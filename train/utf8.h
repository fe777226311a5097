// UTF-8 read one code point at a time, and text that arrives in pieces cut anywhere made printable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace grt {

struct CodePoint {
  enum class State : std::uint8_t {
    whole,       // value is a code point of `length` bytes
    broken,      // `length` bytes that begin no valid sequence (overlong forms, surrogates and > U+10FFFF included)
    incomplete,  // `length` bytes up to the end of the text that begin a valid sequence
  };
  char32_t value;
  int length;  // at least 1
  State state;
};

// The code point at the start of `text`, which must not be empty.
CodePoint first_code_point(std::string_view text);

// Makes text for a terminal from bytes that may be cut inside a code point, as generated tokens are. What it returns is
// always valid UTF-8: bytes that cannot become a code point turn into U+FFFD, one for each longest beginning of a valid
// sequence and one for each other byte, as the Unicode standard recommends. Bytes that must stay exact do not go here.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // all that is certain so far; at most three bytes are held back
  std::string flush();                       // the end: U+FFFD for a code point that was never finished, else nothing

 private:
  std::string held_;
};

}  // namespace grt
