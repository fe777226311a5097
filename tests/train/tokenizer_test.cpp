// The tokenizers against the reference ids, and the encoder of parts against the encoder of wholes.
#include "train/tokenizer.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "core/json.h"
#include "tests/support.h"
#include "train/pretokenizer.h"
#include "train/utf8.h"

using namespace grt;
using test::contains;
using test::error_of;

TEST_SUITE("train") {
  namespace {

  using Ids = std::vector<int>;

  const Tokenizer& gpt2() {
    static const auto tokenizer = make_tokenizer("gpt2");
    return *tokenizer;
  }

  Json cases(const std::string& name) { return read_json(test::fixture("tokenizer/" + name)); }

  // Encodes `text` in parts of 1 to `longest` bytes.
  Ids in_parts(const Tokenizer& tokenizer, std::string_view text, SpecialText special, std::size_t longest,
               unsigned seed = 1) {
    Ids all;
    Encoder encoder(tokenizer, special,
                    [&](std::span<const int> ids) { all.insert(all.end(), ids.begin(), ids.end()); });
    std::mt19937 random(seed);
    while (!text.empty()) {
      const std::size_t n = std::min<std::size_t>(text.size(), 1 + random() % longest);
      encoder.feed(text.substr(0, n));
      text.remove_prefix(n);
    }
    encoder.finish();
    return all;
  }

  std::string random_bytes(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::string bytes(n, '\0');
    for (char& b : bytes) b = static_cast<char>(random());
    return bytes;
  }

  // Every difficulty of the fixtures in one text, with bytes that are no UTF-8 between.
  std::string difficult_text() {
    std::string text;
    for (const char* name : {"bpe_cases.json", "bpe_random.json"})
      for (const Json& c : cases(name)) text += c.at("text").get<std::string>() + random_bytes(2, text.size());
    return text;
  }

  std::string repeated(std::string_view unit, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
  }

  }  // namespace

  TEST_CASE("gpt2 gives the reference ids of all named cases, with and without special text") {
    const Json all = cases("bpe_cases.json");
    CHECK(all.size() == 150);
    int with_special = 0;
    for (const Json& c : all) {
      CAPTURE(c.at("name").get<std::string>());
      const std::string text = c.at("text");
      CHECK(gpt2().encode(text) == c.at("ids").get<Ids>());
      CHECK(gpt2().decode(c.at("ids").get<Ids>()) == text);
      const bool special = c.contains("ids_special");
      with_special += special;
      CHECK(in_parts(gpt2(), text, SpecialText::allow, 3) == c.at(special ? "ids_special" : "ids").get<Ids>());
    }
    CHECK(with_special > 0);
  }

  TEST_CASE("gpt2 gives the reference ids of all random strings") {
    const Json all = cases("bpe_random.json");
    CHECK(all.size() == 700);
    for (const Json& c : all) {
      const std::string text = c.at("text");
      CAPTURE(text);
      CHECK(gpt2().encode(text) == c.at("ids").get<Ids>());
      CHECK(in_parts(gpt2(), text, SpecialText::ordinary, 3) == c.at("ids").get<Ids>());
    }
  }

  // Sources: tiktoken's own tests, and the threads on mistakes of other tokenizers.
  TEST_CASE("gpt2 gives the ids that others have published") {
    const std::pair<std::string, Ids> published[] = {
        {"hello world", {31373, 995}},
        {std::string(16, '0'), {25645}},
        {std::string(17, '0'), {8269, 10535, 830}},
        {"\n =", {198, 796}},
        {"\n\nword", {198, 198, 4775}},
        {"\n\n", {628}},
        {" \xC2\x85 b", {1587, 227, 275}},
        {"\xEF\xBB\xBFhello", {171, 119, 123, 31373}},
        {"x \n\t \r\n ", {87, 220, 198, 197, 220, 201, 198, 220}},
        {",,,,,,,,,,,,", {47682, 23846}},
        {"\xF0\x9F\x91\x8D's", {41840, 235, 6, 82}},
        {std::string("\0", 1), {188}},
        {"a\r\nb", {64, 201, 198, 65}},
    };
    for (const auto& [text, ids] : published) {
      CAPTURE(text);
      CHECK(gpt2().encode(text) == ids);
    }
  }

  TEST_CASE("every code point has the class that the Unicode ranges give it") {
    const Json ranges = cases("unicode_ranges.json");
    std::vector<CharClass> expected(0x110000, CharClass::other);
    const std::pair<const char*, CharClass> classes[] = {
        {"L", CharClass::letter}, {"N", CharClass::number}, {"S", CharClass::space}};
    for (const auto& [key, char_class] : classes)
      for (const Json& range : ranges.at(key))
        for (char32_t c = range.at(0); c <= range.at(1).get<char32_t>(); ++c) expected[c] = char_class;
    int wrong = 0;
    for (char32_t c = 0; c < expected.size(); ++c) wrong += char_class(c) != expected[c];
    CHECK(wrong == 0);
  }

  TEST_CASE("any bytes come back from both tokenizers") {
    for (const std::string name : {"bytes", "gpt2"}) {
      const auto tokenizer = make_tokenizer(name);
      CHECK(tokenizer->encode("").empty());
      CHECK(in_parts(*tokenizer, "", SpecialText::ordinary, 1).empty());
      for (unsigned seed = 0; seed < 50; ++seed) {
        const std::string text = random_bytes(seed * 37, seed);
        CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
      }
      const std::string text = difficult_text();
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
  }

  TEST_CASE("a text encoded in parts has the ids of the whole, wherever it is cut") {
    const std::string text = difficult_text(), special = "<|endoftext|>";
    const Ids whole = gpt2().encode(text);
    Ids allowed;
    std::string_view rest = text;
    for (std::size_t at; (at = rest.find(special)) != rest.npos; rest.remove_prefix(at + special.size())) {
      gpt2().encode(rest.substr(0, at), allowed);
      allowed.push_back(50256);
    }
    gpt2().encode(rest, allowed);
    CHECK(allowed != whole);
    for (const std::size_t longest : {1, 2, 7, 100, 5000, 65536, 1 << 20}) {
      CAPTURE(longest);
      const auto seed = static_cast<unsigned>(longest);
      CHECK(in_parts(gpt2(), text, SpecialText::ordinary, longest, seed) == whole);
      CHECK(in_parts(gpt2(), text, SpecialText::allow, longest, seed) == allowed);
    }
    const auto bytes = make_tokenizer("bytes");
    CHECK(in_parts(*bytes, text, SpecialText::error, 100) == bytes->encode(text));
  }

  TEST_CASE("an encoder starts each document afresh") {
    Ids all;
    Encoder encoder(gpt2(), SpecialText::allow, [&](auto ids) { all.insert(all.end(), ids.begin(), ids.end()); });
    for (const char* document : {"hello", " world", "  ", "<|endof", "text|>"}) {
      encoder.feed(document);
      encoder.finish();
      CHECK(all == gpt2().encode(document));
      all.clear();
    }
  }

  TEST_CASE("a million equal characters are encoded right, whole and in parts") {
    const struct {
      const char* unit;
      std::size_t tokens;  // of 10^6 bytes
    } runs[] = {{"^", 250000}, {"a", 250000}, {" ", 1000000}, {"\xF0\x9F\x98\x80", 500000}};
    for (const auto& run : runs) {
      CAPTURE(run.unit);
      const std::string text = repeated(run.unit, 1000000);
      const Ids ids = gpt2().encode(text);
      CHECK(ids.size() == run.tokens);
      CHECK(gpt2().decode(ids) == text);
      CHECK(in_parts(gpt2(), text, SpecialText::ordinary, 3000) == ids);
      CHECK(in_parts(gpt2(), text, SpecialText::allow, 2) == ids);
    }
    CHECK(gpt2().encode(std::string(1000000, '^')) == Ids(250000, gpt2().encode("^^^^").at(0)));
    CHECK(gpt2().encode(std::string(1000000, ' ')) == Ids(1000000, 220));
  }

  TEST_CASE("special text is ordinary, the end of a document or an error, as asked, wherever it is cut") {
    const std::string text = "hello <|endoftext|><|endoftext|> <|endoftext|";
    const Ids ordinary = gpt2().encode(text);
    CHECK(Ids(ordinary.begin(), ordinary.begin() + 8) == Ids{31373, 1279, 91, 437, 1659, 5239, 91, 6927});
    Ids allowed{31373, 220, 50256, 50256};
    for (const int id : gpt2().encode(" <|endoftext|")) allowed.push_back(id);
    for (unsigned seed = 0; seed < 30; ++seed) {
      CHECK(in_parts(gpt2(), text, SpecialText::ordinary, 6, seed) == ordinary);
      CHECK(in_parts(gpt2(), text, SpecialText::allow, 6, seed) == allowed);
      const std::string error = error_of([&] { in_parts(gpt2(), text, SpecialText::error, 6, seed); });
      CHECK(contains(error, "<|endoftext|> at byte 6"));
    }
    const std::string almost = "<|endoftex <<|endoftext |> <|endoftext|";
    CHECK(in_parts(gpt2(), almost, SpecialText::error, 4) == gpt2().encode(almost));
    const auto bytes = make_tokenizer("bytes");
    CHECK(in_parts(*bytes, text, SpecialText::error, 6) == bytes->encode(text));
  }

  TEST_CASE("every id decodes to its own bytes, and no other id does") {
    CHECK(gpt2().vocab_size() == 50257);
    CHECK(gpt2().end_of_document() == 50256);
    CHECK(gpt2().decode(50256) == "<|endoftext|>");
    int not_utf8 = 0, wrong = 0;
    for (int id = 0; id < 50256; ++id) {
      const std::string bytes(gpt2().decode(id));
      wrong += bytes.empty();
      std::string_view rest = bytes;
      while (!rest.empty() && first_code_point(rest).state == CodePoint::State::whole)
        rest.remove_prefix(first_code_point(rest).length);
      not_utf8 += !rest.empty();
    }
    CHECK(wrong == 0);
    CHECK(not_utf8 == 344);
    for (const int id : {-1, 50257, 1 << 20})
      CHECK(error_of([&] { gpt2().decode(id); }) == fmt::format("gpt2 tokenizer: id {} is outside [0, 50257)", id));

    const auto bytes = make_tokenizer("bytes");
    CHECK(bytes->vocab_size() == 257);
    CHECK(bytes->end_of_document() == 256);
    CHECK(bytes->decode(256) == "");
    for (int id = 0; id < 256; ++id) CHECK(bytes->decode(id) == std::string(1, static_cast<char>(id)));
    CHECK(contains(error_of([&] { bytes->decode(257); }), "id 257"));
  }

  TEST_CASE("tokens that are parts of an emoji are shown together") {
    const Ids ids = gpt2().encode("a \xF0\x9F\x87\xB0\xF0\x9F\x87\xB7!");
    Utf8Stream stream;
    std::string text;
    for (const int id : ids) {
      const std::string part = stream.push(gpt2().decode(id));
      CHECK(!contains(part, "\xEF\xBF\xBD"));
      text += part;
    }
    CHECK(text + stream.flush() == "a \xF0\x9F\x87\xB0\xF0\x9F\x87\xB7!");
  }

  TEST_CASE("threads that share a tokenizer get the ids of one that has it alone") {
    const std::string text = difficult_text();
    const Ids expected = gpt2().encode(text);
    std::vector<Ids> got(4);
    std::vector<std::thread> threads;
    for (Ids& ids : got) threads.emplace_back([&] { gpt2().encode(text, ids); });
    for (std::thread& t : threads) t.join();
    for (const Ids& ids : got) CHECK(ids == expected);
  }

  TEST_CASE("an unknown tokenizer's name is refused with the names there are") {
    CHECK(error_of([] { make_tokenizer("GPT2"); }) == "unknown tokenizer \"GPT2\": expected bytes or gpt2");
  }
}
