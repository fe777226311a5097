// The documents of text files and .jsonl files, plain and gzipped, and the errors of files that are neither.
#include "train/text_source.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include "core/files.h"
#include "tests/support.h"

using namespace grt;
using test::contains;
using test::error_of;
using test::TempDir;

TEST_SUITE("train") {
  namespace {

  using Documents = std::vector<std::pair<std::string, std::string>>;  // location, text

  std::string gzipped(const std::string& text, const TempDir& dir) {
    const std::string file = dir / "packed";
    gzFile out = gzopen(file.c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return read_file(file);
  }

  std::string put(const TempDir& dir, const std::string& name, std::string_view content) {
    write_file(dir / name, content);
    return dir / name;
  }

  Documents documents_of(const std::vector<std::string>& files) {
    TextSource source(files);
    Documents documents;
    while (source.next()) {
      std::string text;
      for (std::string_view part; !(part = source.read()).empty();) text += part;
      CHECK(source.read().empty());
      documents.emplace_back(source.location(), text);
    }
    CHECK(!source.next());
    return documents;
  }

  std::string error_in(const std::string& file) {
    return error_of([&] { documents_of({file}); });
  }

  }  // namespace

  TEST_CASE("a text file is one document with exactly its bytes, gzipped or not, empty or not") {
    const TempDir dir;
    std::string large;
    for (int i = 0; i < 300000; ++i) large += static_cast<char>(i * 7 + i / 256);
    const std::string texts[] = {"",   "one line", "two\r\nlines\n", std::string("a\0b", 3), "\xEF\xBB\xBFwith a mark",
                                 large};
    for (const std::string& text : texts) {
      const std::string plain = put(dir, "plain.txt", text), packed = put(dir, "plain.txt.gz", gzipped(text, dir));
      const std::string unnamed = put(dir, "packed.dz", gzipped(text, dir));
      CHECK(documents_of({plain}) == Documents{{plain, text}});
      CHECK(documents_of({packed, plain, unnamed}) == Documents{{packed, text}, {plain, text}, {unnamed, text}});
    }
  }

  TEST_CASE("a .jsonl file has a document on each line that is not blank") {
    const TempDir dir;
    const std::string lines =
        "{\"text\": \"first\"}\r\n\n  \t\n{\"id\": 7, \"text\": \"two \\ud83d\\ude00\\u0000\\n\", \"more\": "
        "[1]}\n{\"text\": \"\"}";
    const std::string plain = put(dir, "a.jsonl", lines), packed = put(dir, "b.jsonl.gz", gzipped(lines, dir));
    const std::string second = std::string("two \xF0\x9F\x98\x80\0\n", 10);
    CHECK(documents_of({plain, packed}) == Documents{{plain + ":1", "first"},
                                                     {plain + ":4", second},
                                                     {plain + ":5", ""},
                                                     {packed + ":1", "first"},
                                                     {packed + ":4", second},
                                                     {packed + ":5", ""}});
    CHECK(documents_of({put(dir, "empty.jsonl", "")}).empty());
  }

  TEST_CASE("a line longer than any buffer is one document") {
    const TempDir dir;
    const std::string text(1000000, 'x');
    const std::string file = put(dir, "long.jsonl", "{\"text\": \"" + text + "\"}\n{\"text\": \"y\"}\n");
    CHECK(documents_of({file}) == Documents{{file + ":1", text}, {file + ":2", "y"}});
  }

  TEST_CASE("a document that was not read to its end is skipped") {
    const TempDir dir;
    TextSource source(
        {put(dir, "a.txt", std::string(200000, 'a')), put(dir, "b.jsonl", "{\"text\":\"b\"}\n{\"text\":\"c\"}\n")});
    CHECK(source.read().empty());
    REQUIRE(source.next());
    CHECK(source.read().front() == 'a');
    REQUIRE(source.next());
    REQUIRE(source.next());
    CHECK(source.read() == "c");
  }

  TEST_CASE("a gzipped file of several members is read to its end, and what is no member is an error") {
    const TempDir dir;
    const std::string a = gzipped(std::string(300000, 'a'), dir), b = gzipped("b", dir), zeros(1000, '\0');
    const std::string both = std::string(300000, 'a') + "b";
    for (const std::string& packed : {a + b, a + zeros + b, a + b + zeros}) {
      const std::string file = put(dir, "ab.gz", packed);
      CHECK(documents_of({file}) == Documents{{file, both}});
    }
    CHECK(contains(error_in(put(dir, "x.gz", a + "x")), "x.gz: what follows its gzip data is no gzip data"));
    CHECK(contains(error_in(put(dir, "x.gz", a + zeros + b.substr(1))), "what follows its gzip data"));
    CHECK(contains(error_in(put(dir, "x.gz", a + b.substr(0, 1))), "x.gz: the gzip data ends early"));
    CHECK(contains(error_in(put(dir, "x.gz", a + b.substr(0, 1) + "x")), "x.gz: the gzip data is damaged"));
  }

  TEST_CASE("what cannot be read is an error that names the file, the line and the reason") {
    const TempDir dir;
    CHECK(error_in(dir / "none.txt") == (dir / "none.txt").string() + ": no such file");
    CHECK(contains(error_in(dir.path), "expected a file, but it is a directory"));
    const std::string last_missing = error_of([&] { TextSource({put(dir, "there.txt", "x"), dir / "none.txt"}); });
    CHECK(contains(last_missing, "none.txt: no such file"));

    std::string packed = gzipped(std::string(5000, 'a') + "b", dir);
    CHECK(contains(error_in(put(dir, "cut.gz", packed.substr(0, packed.size() - 5))),
                   "cut.gz: the gzip data ends early"));
    CHECK(contains(error_in(put(dir, "head.gz", packed.substr(0, 6))), "head.gz: the gzip data ends early"));
    packed[packed.size() - 6] ^= 1;  // the checksum
    CHECK(contains(error_in(put(dir, "bad.gz", packed)), "bad.gz: the gzip data is damaged"));
    CHECK(contains(error_in(put(dir, "bad.jsonl.gz", packed)), "bad.jsonl.gz: the gzip data is damaged"));
    CHECK(contains(error_in(put(dir, "text.gz", "plain")), "text.gz: named .gz, but it is no gzip file"));
    CHECK(contains(error_in(put(dir, "empty.gz", "")), "empty.gz: named .gz, but it is no gzip file"));

    const struct {
      const char *line, *error;
    } lines[] = {{"{\"text\": \"x\"", "j.jsonl:2: "},
                 {"\"text\"", "j.jsonl:2: expected a JSON object, not string"},
                 {"{\"Text\": \"x\"}", "j.jsonl:2: the object has no field \"text\""},
                 {"{\"text\": 5}", "j.jsonl:2: the field \"text\" must be a string, not number"},
                 {"{\"text\": \"\\ud800\"}", "j.jsonl:2: "},
                 {"{\"text\": \"\xFF\"}", "j.jsonl:2: "}};
    for (const auto& c : lines) {
      CAPTURE(c.line);
      CHECK(contains(error_in(put(dir, "j.jsonl", fmt::format("{{\"text\": \"ok\"}}\n{}\n", c.line))), c.error));
    }
  }
}
