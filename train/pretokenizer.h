// GPT-2's pre-tokenizer: cuts text into the pieces that byte-pair merges never cross.
//
// The pieces are those of the regular expression in OpenAI's encoder.py,
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// found by a scanner over the four classes of unicode_table.h. That expression is defined for valid UTF-8 only; here
// each byte outside a valid sequence counts as one character of class "other", so that every byte string has pieces.
#pragma once

#include <cstddef>
#include <string_view>

#include "train/unicode_table.h"

namespace grt {

CharClass char_class(char32_t code_point);

// Finds the pieces of a text of which only the beginning may be known yet.
class PieceScanner {
 public:
  // Bytes of the first piece of `text`; 0 if that depends on text still to come (never when `last`: nothing comes), or
  // if `text` is empty. After 0 the next call must be given the same text, longer or `last`: the scan goes on where it
  // stopped, so a text that arrives in many parts is read once.
  std::size_t next(std::string_view text, bool last);

 private:
  bool start_run(std::string_view text, bool last);
  bool extend_run(std::string_view text, bool last);

  std::size_t scanned_ = 0;         // bytes of the unfinished piece read so far
  std::size_t last_character_ = 0;  // bytes of the last character among them
  CharClass class_ = CharClass::other;
};

}  // namespace grt
