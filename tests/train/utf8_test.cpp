// UTF-8 read code point by code point, and the stream that never shows a broken one.
#include "train/utf8.h"

#include <doctest/doctest.h>

#include <random>

using namespace grt;

TEST_SUITE("train") {
  namespace {

  std::string encoded(char32_t c) {
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
    if (c < 0x80) return {static_cast<char>(c)};
    if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
    if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
    return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
  }

  std::string streamed(std::string_view bytes) {
    Utf8Stream stream;
    std::string out = stream.push(bytes);
    return out + stream.flush();
  }

  const std::string kBad = "\xEF\xBF\xBD";

  }  // namespace

  TEST_CASE("every code point is read back whole, its beginnings are incomplete, surrogates are broken") {
    int wrong = 0;
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
      const std::string bytes = encoded(c);
      const CodePoint whole = first_code_point(bytes + "x");
      if (c >= 0xD800 && c <= 0xDFFF) {
        wrong += whole.state != CodePoint::State::broken || whole.length != 1;
        continue;
      }
      wrong += whole.state != CodePoint::State::whole || whole.value != c;
      wrong += whole.length != static_cast<int>(bytes.size());
      for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
        const CodePoint part = first_code_point(std::string_view(bytes).substr(0, cut));
        wrong += part.state != CodePoint::State::incomplete || part.length != static_cast<int>(cut);
      }
    }
    CHECK(wrong == 0);
  }

  TEST_CASE("what is no UTF-8 becomes U+FFFD, one for each longest beginning of a sequence") {
    const struct {
      std::string bytes, text;
    } cases[] = {
        {"a\x80z", "a" + kBad + "z"},
        {"\xC0\xAF", kBad + kBad},                                                  // overlong
        {"\xE0\x80\xAF", kBad + kBad + kBad},                                       // overlong
        {"\xF0\x80\x80\x41", kBad + kBad + kBad + "A"},                             // overlong
        {"\xED\xA0\x80", kBad + kBad + kBad},                                       // a surrogate
        {"\xF4\x91\x92\x93\xFF\x41", kBad + kBad + kBad + kBad + kBad + "A"},       // above U+10FFFF
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", kBad + kBad + kBad + kBad + "A"},  // cut short, Unicode table 3-11
        {"ok \xF0\x9F\x98", "ok " + kBad},                                          // cut short by the end
    };
    for (const auto& c : cases) CHECK(streamed(c.bytes) == c.text);
  }

  TEST_CASE("an emoji that arrives byte by byte is shown with its last byte, not before") {
    Utf8Stream stream;
    CHECK(stream.push("a\xF0") == "a");
    CHECK(stream.push("\x9F") == "");
    CHECK(stream.push("\x98") == "");
    CHECK(stream.push("\x80!") == "\xF0\x9F\x98\x80!");
    CHECK(stream.flush() == "");
    CHECK(stream.push("\xF0\x9F") == "");
    CHECK(stream.flush() == kBad);
    CHECK(stream.push("b") == "b");  // the flushed bytes are gone
  }

  TEST_CASE("random bytes give the same text however they are cut, and always valid UTF-8") {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
      std::string bytes;
      while (bytes.size() < 200) {
        if (random() % 2) bytes += encoded(random() % 0x110000);  // surrogates too
        if (random() % 3 == 0) bytes += static_cast<char>(random());
        if (random() % 5 == 0 && !bytes.empty()) bytes.pop_back();
      }
      Utf8Stream stream;
      std::string out;
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t part = 1 + random() % 5;
        const std::string text = stream.push(std::string_view(bytes).substr(at, part));
        for (std::string_view rest = text; !rest.empty();) {
          const CodePoint c = first_code_point(rest);
          REQUIRE(c.state == CodePoint::State::whole);
          rest.remove_prefix(c.length);
        }
        out += text;
        at += part;
      }
      CHECK(out + stream.flush() == streamed(bytes));
    }
  }
}
