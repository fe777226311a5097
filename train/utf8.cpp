// The table of well-formed UTF-8 (Unicode standard, table 3-7), as bounds on the second byte.
#include "train/utf8.h"

namespace grt {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

int sequence_length(unsigned lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return lead < 0x80 ? 1 : 0;
}

bool second_byte_fits(unsigned lead, unsigned second) {
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // no overlong form
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // no surrogate, nothing above U+10FFFF
  return second >= low && second <= high;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const int length = sequence_length(lead);
  if (length == 1) return {lead, 1, CodePoint::State::whole};
  if (length == 0) return {0, 1, CodePoint::State::broken};

  char32_t value = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return {0, i, CodePoint::State::incomplete};
    const unsigned next = byte(i);
    const bool fits = i == 1 ? second_byte_fits(lead, next) : (next & 0xC0) == 0x80;
    if (!fits) return {0, i, CodePoint::State::broken};
    value = value << 6 | (next & 0x3F);
  }
  return {value, length, CodePoint::State::whole};
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  out.reserve(held_.size());
  std::string_view rest = held_;
  while (!rest.empty()) {
    const CodePoint c = first_code_point(rest);
    if (c.state == CodePoint::State::incomplete) break;
    out += c.state == CodePoint::State::whole ? rest.substr(0, c.length) : kReplacement;
    rest.remove_prefix(c.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return out;
}

std::string Utf8Stream::flush() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacement);
}

}  // namespace grt
