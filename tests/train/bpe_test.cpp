// The merges against the rule carried out naively.
#include "train/bpe.h"

#include <doctest/doctest.h>

#include <random>

#include "core/error.h"
#include "tests/support.h"

extern "C" const char grt_merges_begin[], grt_merges_end[];

using namespace grt;
using test::contains;
using test::error_of;

TEST_SUITE("train") {
  namespace {

  using Ids = std::vector<int>;

  const Bpe& bpe() {
    static const Bpe table(std::string_view(grt_merges_begin, grt_merges_end - grt_merges_begin));
    return table;
  }

  Ids merged(std::string_view piece) {
    Ids ids;
    bpe().merge(piece, ids);
    return ids;
  }

  // The neighbours whose joined bytes are the lowest token become it, the leftmost first, until there are none.
  Ids merged_naively(std::string_view piece) {
    Ids ids;
    for (const char& byte : piece) ids.push_back(bpe().find({&byte, 1}));
    while (true) {
      int lowest = bpe().size();
      std::size_t place = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const int id = bpe().find(std::string(bpe().token(ids[i])) + std::string(bpe().token(ids[i + 1])));
        if (id < 0 || id >= lowest) continue;
        lowest = id;
        place = i;
      }
      if (lowest == bpe().size()) return ids;
      ids[place] = lowest;
      ids.erase(ids.begin() + place + 1);
    }
  }

  }  // namespace

  TEST_CASE("the table holds GPT-2's 50,256 tokens, and each is what its bytes merge to") {
    REQUIRE(bpe().size() == 50256);
    CHECK(bpe().token(0) == "!");
    CHECK(bpe().token(188) == std::string_view("\0", 1));
    CHECK(bpe().token(256) == " t");
    int wrong = 0;
    for (int id = 0; id < bpe().size(); ++id) wrong += merged(bpe().token(id)) != Ids{id};
    CHECK(wrong == 0);
    CHECK(bpe().find("no token at all") == -1);
  }

  TEST_CASE("short and long pieces are merged like the naive rule does") {
    const std::string alphabets[] = {
        "a", "ab", "=-", " ", "etaoin", "\xF0\x9F\x98\x80\x81", "\xE4\xB8\xAD\xE5\x9B\xBD"};
    std::mt19937 random(3);
    for (const std::string& alphabet : alphabets)
      for (int length = 0; length < 300; length += 1 + length / 8) {
        std::string piece;
        for (int i = 0; i < length; ++i) piece += alphabet[random() % alphabet.size()];
        CAPTURE(piece);
        CHECK(merged(piece) == merged_naively(piece));
      }
  }

  TEST_CASE("a piece of tokens strung together is merged like the naive rule does") {
    std::mt19937 random(4);
    for (int round = 0; round < 200; ++round) {
      std::string piece;
      for (unsigned i = random() % 30; i > 0; --i) piece += bpe().token(static_cast<int>(random() % 50256));
      CHECK(merged(piece) == merged_naively(piece));
    }
  }

  TEST_CASE("a table that is no table of merges is refused by its line") {
    CHECK(contains(error_of([] { Bpe("a b\n"); }), "first line must begin with #version"));
    CHECK(contains(error_of([] { Bpe(""); }), "first line"));
    const char* lines[] = {"ab", "a  b", "a b c", " b", "a ", "", "a zz", "a \x80", "a \xC2\xAD"};
    for (const char* line : lines) {
      CAPTURE(line);
      const std::string text = fmt::format("#version: 0.2\nh e\n{}\n", line);
      CHECK(contains(error_of([&] { Bpe{text}; }), "vocab.bpe:3: expected two earlier tokens"));
    }
    const Bpe small("#version: 0.2\n# #\nh e\nhe ##\n");
    CHECK(small.size() == 259);
    CHECK(small.token(258) == "he##");
  }
}
