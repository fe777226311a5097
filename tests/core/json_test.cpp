// Strict JSON: what is refused, and that the refusal says where.
#include "core/json.h"

#include <string>

#include "core/files.h"
#include "tests/support.h"

namespace grt::test {
namespace {

std::string refusal(const std::string& text) {
  return error_of([&] { parse_json(text, "x.json"); });
}

TEST_SUITE("core") {
  TEST_CASE("JSON keeps the order of keys and the kinds of numbers") {
    const Json json =
        parse_json(R"( {"z": 1, "a": -2, "m": [1.5, true, null, "\u00e9"], "big": 18446744073709551615} )", "");
    CHECK(json.dump() == "{\"z\":1,\"a\":-2,\"m\":[1.5,true,null,\"é\"],\"big\":18446744073709551615}");
    CHECK(parse_sorted_json(R"({"z":1,"a":2})", "").dump() == R"({"a":2,"z":1})");
  }

  TEST_CASE("malformed JSON is refused, naming the file and the byte") {
    CHECK(refusal("").starts_with("x.json: not JSON: byte 1: "));
    CHECK(refusal("{\"a\": 1,}").starts_with("x.json: not JSON: byte 9: "));
    CHECK(refusal("[1, 2").starts_with("x.json: not JSON: byte 6: "));
    CHECK(refusal("[1] [2]").starts_with("x.json: not JSON: byte 5: "));
    CHECK(refusal("{'a': 1}").starts_with("x.json: not JSON: byte 2: "));
    CHECK(contains(refusal("[NaN]"), "byte 2"));
    CHECK(contains(refusal("// comment\n1"), "byte 1"));
    CHECK(contains(refusal("\"\xc3\x28\""), "byte 3"));
    CHECK(contains(refusal(std::string("{}\0{}", 5)), "byte 2 is zero"));
  }

  TEST_CASE("a number beyond the range of double is refused") {
    CHECK(contains(refusal("[1e999]"), "x.json: not JSON: number overflow parsing '1e999'"));
    CHECK(contains(refusal("-1e309"), "1e309"));
    CHECK(parse_json("1e308", "").get<double>() == 1e308);
  }

  TEST_CASE("a key that occurs twice in one object is refused at any level, in different objects it is not") {
    CHECK(refusal(R"({"lr": 1, "lr": 2})") == "x.json: the key \"lr\" occurs twice in one object");
    CHECK(contains(refusal(R"([{"a": {"b": [{"c": 1, "d": 2, "c": 3}]}}])"), "\"c\" occurs twice"));
    CHECK(contains(refusal(R"({"a": {"x": 1}, "b": 0, "a": {}})"), "\"a\" occurs twice"));
    CHECK(parse_json(R"([{"a": {"a": 1}}, {"a": 2}])", "").size() == 2);
  }

  TEST_CASE("64 levels are read, 65 are refused, and ten million do not overflow the stack") {
    const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
    CHECK(parse_json(nested(64), "").size() == 1);
    CHECK(refusal(nested(65)) == "x.json: JSON is nested deeper than 64");
    CHECK(contains(refusal(std::string(10'000'000, '[')), "deeper than 64"));
    std::string objects;
    for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
    CHECK(contains(refusal(objects), "deeper than 64"));
  }

  TEST_CASE("a refusal is short and one line, whatever the text holds") {
    const std::string long_string = refusal("\"" + std::string(1'000'000, 'x'));
    CHECK(long_string.size() < 400);
    const std::string long_key = "\"" + std::string(1'000'000, 'k') + "\":1";
    CHECK(refusal("{" + long_key + "," + long_key + "}").size() < 400);
    CHECK(!contains(refusal("{\"a\n\": 1}"), "\n"));
  }

  TEST_CASE("a JSON file that is missing is named") {
    const TempDir dir;
    const std::string path = (dir / "none.json").string();
    CHECK(error_of([&] { read_json(path); }) == path + ": cannot open: No such file or directory");
    write_file(path, "{\"a\": [1]}");
    CHECK(read_json(path)["a"][0] == 1);
  }
}

}  // namespace
}  // namespace grt::test
