// Checkpoint files: what is accepted, what is refused and why, and the values that come back.
#include "core/safetensors.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/support.h"

namespace grt::test {
namespace {

// Without write_file's waiting for the disk: these are hundreds of files.
void put(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string little_endian(std::uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i) & 255);
  return bytes;
}

std::string whole(const std::string& header, std::size_t data_bytes = 0) {
  return little_endian(header.size()) + header + std::string(data_bytes, '\x11');
}

// A header with one tensor "a".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string two(const std::string& a, const std::string& b) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* expected;  // a part of the error
};

std::vector<Hostile> hostile_lengths() {
  const std::string good = one("F32", "[2]", "[0,8]");
  return {
      {"empty file", "", "has 0 bytes"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"length only, of zero", little_endian(0), "does not begin with '{'"},
      {"zero length and data", little_endian(0) + "{}", "does not begin with '{'"},
      {"length beyond the file", little_endian(3) + "{}", "the header has 3 bytes, but the file ends after 2"},
      {"length of 100 MB and one", little_endian(100'000'001) + "{}", "header length is 100000001"},
      {"length of 100 MB in a small file", little_endian(100'000'000) + "{}", "the file ends after 2"},
      {"length of all ones", little_endian(~0ull) + "{}", "header length is 18446744073709551615"},
      {"length that wraps with the prefix", little_endian(~0ull - 7) + "{}", "header length is"},
      {"length of 2^63", little_endian(1ull << 63) + "{}", "header length is"},
      {"length cuts the header", little_endian(good.size() - 1) + good + std::string(8, 'x'), "not JSON: byte"},
      {"length reaches into the data", little_endian(good.size() + 4) + good + std::string(8, 'x'), "not JSON: byte"},
      {"text file", "Hello, this is a text file and no checkpoint.", "no safetensors file"},
      {"zip archive", "PK\x03\x04\x14\x08\x08\x08 archive/data.pkl and so on", "no safetensors file"},
  };
}

std::vector<Hostile> hostile_json() {
  return {
      {"header is a list", whole("[]"), "does not begin with '{'"},
      {"leading space", whole(" {}"), "does not begin with '{'"},
      {"byte order mark", whole("\xef\xbb\xbf{}"), "does not begin with '{'"},
      {"header is not closed", whole("{"), "not JSON: byte"},
      {"two headers", whole("{}{}"), "not JSON: byte"},
      {"zero byte ends the header", whole(std::string("{}\0garbage", 10)), "byte 2 is zero"},
      {"invalid UTF-8", whole("{\"\xff\":1}"), "not JSON: byte"},
      {"deep lists", whole(R"({"a":)" + std::string(10'000'000, '[')), "nested deeper than 64"},
      {"deep objects", whole([] {
         std::string text;
         for (int i = 0; i < 100'000; ++i) text += R"({"a":)";
         return text;
       }()),
       "nested deeper than 64"},
      {"duplicate tensor", whole(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1})"),
       "\"a\" occurs twice"},
      {"duplicate field", whole(R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}})", 1),
       "\"dtype\" occurs twice"},
      {"duplicate metadata", whole(R"({"__metadata__":{"k":"1","k":"2"}})"), "\"k\" occurs twice"},
      {"duplicate key by escape", whole("{\"a\":1,\"\\u0061\":2}"), "\"a\" occurs twice"},
      {"metadata is a list", whole(R"({"__metadata__":[]})"), "__metadata__ must be an object"},
      {"metadata is null", whole(R"({"__metadata__":null})"), "__metadata__ must be an object"},
      {"metadata holds a number", whole(R"({"__metadata__":{"step":7}})"), "__metadata__ \"step\" must be a string"},
      {"metadata holds an object", whole(R"({"__metadata__":{"x":{}}})"), "__metadata__ \"x\" must be a string"},
      {"tensor is a number", whole(R"({"a":7})"), "tensor \"a\": an object is expected"},
      {"tensor is null", whole(R"({"a":null})"), "tensor \"a\": an object is expected"},
      {"no dtype", whole(R"({"a":{"shape":[0],"data_offsets":[0,0]}})"), "tensor \"a\": has no dtype"},
      {"no shape", whole(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})"), "tensor \"a\": has no shape"},
      {"no offsets", whole(R"({"a":{"dtype":"U8","shape":[0]}})"), "tensor \"a\": has no data_offsets"},
      {"unknown field", whole(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})"), "unknown field \"x\""},
  };
}

std::vector<Hostile> hostile_entries() {
  return {
      {"dtype is a number", whole(R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4),
       "dtype must be a string"},
      {"unknown dtype", whole(one("F31", "[1]", "[0,4]"), 4), "unknown dtype \"F31\""},
      {"empty dtype", whole(one("", "[1]", "[0,4]"), 4), "unknown dtype \"\""},
      {"lower case dtype", whole(one("f32", "[1]", "[0,4]"), 4), "unknown dtype \"f32\""},
      {"shape is a number", whole(one("F32", "1", "[0,4]"), 4), "shape a list"},
      {"negative extent", whole(one("F32", "[-1]", "[0,4]"), 4), "whole numbers from 0 on, not -1"},
      {"negative pair of extents", whole(one("U8", "[-2,-2]", "[0,4]"), 4), "whole numbers from 0 on, not -2"},
      {"fraction in shape", whole(one("F32", "[1.0]", "[0,4]"), 4), "whole numbers from 0 on, not 1.0"},
      {"text in shape", whole(one("F32", R"(["1"])", "[0,4]"), 4), "whole numbers from 0 on"},
      {"list in shape", whole(one("F32", "[[1]]", "[0,4]"), 4), "whole numbers from 0 on"},
      {"extent of 2^63", whole(one("U8", "[9223372036854775808]", "[0,0]")), "too large"},
      {"extent of 2^64", whole(one("U8", "[18446744073709551616]", "[0,0]")), "whole numbers from 0 on"},
      {"extent of 1e999", whole(one("U8", "[1e999]", "[0,0]")), "not JSON"},
      {"product wraps to zero", whole(one("U8", "[4294967296,4294967296]", "[0,0]")), "no possible number of bytes"},
      {"product wraps to four", whole(one("U8", "[4294967297,4294967296,4294967296,4]", "[0,4]"), 4),
       "no possible number of bytes"},
      {"bytes wrap", whole(one("F32", "[4611686018427387904]", "[0,0]")), "no possible number of bytes"},
      {"half a byte", whole(one("F4", "[3]", "[0,2]"), 2), "no possible number of bytes"},
      {"one offset", whole(one("U8", "[1]", "[0]"), 1), "a list of two numbers"},
      {"three offsets", whole(one("U8", "[1]", "[0,1,1]"), 1), "a list of two numbers"},
      {"negative offset", whole(one("U8", "[1]", "[-1,0]"), 1), "whole numbers from 0 on, not -1"},
      {"fraction as offset", whole(one("U8", "[1]", "[0,1.5]"), 1), "whole numbers from 0 on, not 1.5"},
      {"offset of all ones", whole(one("U8", "[1]", "[0,18446744073709551615]"), 1), "too large"},
      {"ends before it begins", whole(one("U8", "[1]", "[1,0]"), 1), "begins at byte 1 and ends at 0"},
      {"data is cut short", whole(one("F32", "[2]", "[0,8]"), 7), "ends at byte 8, but the file has 7 bytes"},
      {"no data at all", whole(one("F32", "[2]", "[0,8]")), "ends at byte 8, but the file has 0 bytes"},
      {"more bytes than the shape", whole(one("F32", "[1]", "[0,8]"), 8), "needs 4 bytes, data_offsets give 8"},
      {"fewer bytes than the shape", whole(one("F32", "[2]", "[0,4]"), 4), "needs 8 bytes, data_offsets give 4"},
      {"hole at the begin", whole(one("U8", "[4]", "[1,5]"), 5), "bytes 0 to there belong to no tensor"},
      {"hole between", whole(two("[0,4]", "[5,9]"), 9), "bytes 4 to there belong to no tensor"},
      {"overlap", whole(two("[0,4]", "[3,7]"), 7), "\"b\" begins at byte 3, inside the tensor that ends at 4"},
      {"two names for the same bytes", whole(two("[0,4]", "[0,4]"), 4), "begins at byte 0, inside"},
      {"trailing bytes", whole(two("[0,4]", "[4,8]"), 9), "end at byte 8, but the file has 9 bytes of data"},
      {"data without tensors", whole("{}", 1), "end at byte 0, but the file has 1 bytes of data"},
  };
}

TEST_SUITE("core") {
  TEST_CASE("hostile and broken safetensors files are refused with the reason") {
    const TempDir dir;
    const std::string path = (dir / "hostile.safetensors").string();
    for (const auto& corpus : {hostile_lengths(), hostile_json(), hostile_entries()}) {
      for (const Hostile& h : corpus) {
        CAPTURE(h.name);
        put(path, h.bytes);
        const std::string text = error_of([&] { Safetensors{path}; });
        CAPTURE(text);
        CHECK(contains(text, h.expected));
        CHECK(text.starts_with(path + ": "));
        CHECK(text.size() < path.size() + 400);
      }
    }
  }

  TEST_CASE("every shortened form of a good file is refused, and every damaged byte at least does no harm") {
    const TempDir dir;
    const std::string path = (dir / "cut").string();
    const std::string good = whole(two("[4,8]", "[0,4]") + "  ", 8);
    put(path, good);
    CHECK(Safetensors(path).entries().size() == 2);
    for (std::size_t length = 0; length < good.size(); ++length) {
      put(path, good.substr(0, length));
      CHECK_THROWS_AS(Safetensors{path}, Error);
    }
    int refused = 0;
    for (std::size_t i = 0; i < good.size() - 8; ++i) {  // the data may hold anything
      for (const int flip : {1, 32, 128}) {
        std::string damaged = good;
        damaged[i] = static_cast<char>(damaged[i] ^ flip);
        put(path, damaged);
        try {
          Safetensors{path};
        } catch (const Error&) {
          ++refused;
        }
      }
    }
    CHECK(refused > 300);
  }

  TEST_CASE("odd but legal safetensors files are accepted") {
    const TempDir dir;
    const std::string path = (dir / "odd").string();
    const auto open = [&](const std::string& bytes) {
      put(path, bytes);
      return Safetensors(path);
    };
    CHECK(open(whole("{}")).entries().empty());
    CHECK(open(whole(R"({"__metadata__":{"format":"pt","é":"\n"}}      )")).metadata().at("é") == "\n");
    CHECK(open(whole(one("F32", "[]", "[0,4]"), 4)).entries().at("a").shape.empty());
    CHECK(open(whole(one("F32", "[3,0,7]", "[0,0]"))).entries().at("a").shape == std::vector<std::int64_t>{3, 0, 7});
    CHECK(open(whole(one("I64", "[1,1,1,1,1,1,1]", "[0,8]"), 8)).entries().at("a").shape.size() == 7);
    CHECK(open(whole(one("F4", "[4]", "[0,2]"), 2)).entries().at("a").dtype == "F4");
    CHECK(open(whole(two("[4,8]", "[0,4]"), 8)).entries().at("a").begin == 4);
    // An empty tensor may lie between two others, at the same byte as the next.
    CHECK(open(whole(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                     4))
              .entries()
              .size() == 3);
  }

  TEST_CASE("what is written is read back bit for bit") {
    const TempDir dir;
    const std::string path = (dir / "round").string();
    const std::vector<std::int32_t> ids = {-1, 0, 7, std::numeric_limits<std::int32_t>::min()};
    const std::vector<float> special = {std::numeric_limits<float>::infinity(), -0.0f,
                                        std::numeric_limits<float>::denorm_min(),
                                        std::numeric_limits<float>::quiet_NaN()};
    const std::vector<NamedTensor> tensors = {{"z.weight", randn({3, 5, 7}, 1, DType::f32)},
                                              {"a.bias", Tensor::from<float>({4}, special, cpu())},
                                              {"ids", Tensor::from<std::int32_t>({2, 2}, ids, cpu())},
                                              {"empty", Tensor::zeros({0, 3}, DType::f32, cpu())},
                                              {"scalar \"1\"", randn({}, 2, DType::f32)},
                                              {"long", randn({600, 1000}, 3, DType::f32)}};
    write_safetensors(path, tensors, {{"step", "500"}, {"note", "line 1\nline 2"}});
    const Safetensors file(path);
    CHECK(file.entries().size() == tensors.size());
    CHECK(file.metadata() == std::map<std::string, std::string>{{"note", "line 1\nline 2"}, {"step", "500"}});
    for (const NamedTensor& t : tensors) {
      CAPTURE(t.name);
      const Tensor back = Tensor::zeros(t.tensor.shape(), t.tensor.dtype(), cpu());
      file.read(t.name, back);
      CHECK(same_bits(back, t.tensor));
    }
    const std::string first = read_file(path);
    std::uint64_t header = 0;
    std::memcpy(&header, first.data(), 8);
    CHECK(header % 8 == 0);
    write_safetensors(path, tensors, {{"note", "line 1\nline 2"}, {"step", "500"}});
    CHECK(read_file(path) == first);
  }

  TEST_CASE("2-byte tensors are written behind the others, so that all are aligned") {
    const TempDir dir;
    const std::string path = (dir / "mixed").string();
    const Tensor half = Tensor::empty({3}, DType::bf16, cpu());
    const std::uint16_t bits[3] = {0x3f80, 0xc000, 0x7f80};  // 1, -2, infinity
    std::memcpy(half.raw(), bits, sizeof bits);
    write_safetensors(path, {{"half", half}, {"wide", randn({2}, 5)}});
    const Safetensors file(path);
    CHECK(file.entries().at("half").dtype == "BF16");
    CHECK(file.entries().at("half").begin == 8);
    CHECK(file.entries().at("wide").dtype == "F32");
    const Tensor narrow = Tensor::zeros({3}, DType::f32, cpu()), copy = Tensor::zeros({3}, DType::bf16, cpu());
    file.read("half", narrow);
    CHECK(values(narrow) == std::vector<double>{1, -2, std::numeric_limits<double>::infinity()});
    file.read("half", copy);
    CHECK(same_bits(copy, half));
    const Tensor wide = Tensor::zeros({2}, DType::f64, cpu());
    file.read("wide", wide);
    for (int i = 0; i < 2; ++i) CHECK(values(wide)[i] == static_cast<float>(values(randn({2}, 5))[i]));
  }

  TEST_CASE("every half-precision number converts exactly") {
    const TempDir dir;
    const std::string path = (dir / "half").string();
    std::string data;
    for (int h = 0; h < 65536; ++h) data += {static_cast<char>(h & 255), static_cast<char>(h >> 8)};
    // One byte before it: the values need not be aligned in the file.
    const std::string header = R"({"p":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("a":{"dtype":"F16","shape":[65536],"data_offsets":[1,131073]}})";
    put(path, whole(header, 1) + data);
    const Tensor t = Tensor::zeros({65536}, DType::f32, cpu());
    Safetensors(path).read("a", t);
    int wrong = 0;
    for (int h = 0; h < 65536; ++h) {
      const int exponent = h >> 10 & 31, mantissa = h & 1023;
      double expected = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
      if (exponent == 31) expected = mantissa ? std::nan("") : std::numeric_limits<double>::infinity();
      const float got = t.data<float>()[h];
      const bool same = std::isnan(expected) ? std::isnan(got) : std::abs(got) == expected;
      wrong += !same || std::signbit(got) != (h >= 32768);
    }
    CHECK(wrong == 0);
  }

  TEST_CASE("F64 is rounded to nearest for f32 and kept for f64") {
    const TempDir dir;
    const std::string path = (dir / "double").string();
    const double x[3] = {0.1, 1 + 0x1p-24, 1 + 0x1.8p-23};  // the last two lie between two floats
    put(path, whole(one("F64", "[3]", "[0,24]")) + std::string(reinterpret_cast<const char*>(x), sizeof x));
    const Tensor narrow = Tensor::zeros({3}, DType::f32, cpu()), wide = Tensor::zeros({3}, DType::f64, cpu());
    Safetensors(path).read("a", narrow);
    Safetensors(path).read("a", wide);
    CHECK(values(narrow) == std::vector<double>{0.1f, 1, 1 + 0x1p-22});
    CHECK(values(wide) == std::vector<double>{x[0], x[1], x[2]});
  }

  TEST_CASE("reading names what does not fit") {
    const TempDir dir;
    const std::string path = (dir / "fit").string();
    put(path, whole(one("I64", "[2,3]", "[0,48]"), 48));
    const Safetensors file(path);
    const auto read_into = [&](const std::string& name, Shape shape, DType dtype) {
      return error_of([&] { file.read(name, Tensor::zeros(shape, dtype, cpu())); });
    };
    CHECK(read_into("b", {2, 3}, DType::f32) == path + ": has no tensor \"b\"");
    CHECK(read_into("a", {3, 2}, DType::f32) == path + ": tensor \"a\" must have shape (3, 2), not (2, 3)");
    CHECK(read_into("a", {6}, DType::f32) == path + ": tensor \"a\" must have shape (6), not (2, 3)");
    CHECK(read_into("a", {2, 3}, DType::f32) == path + ": tensor \"a\" is I64, which cannot become f32");
    CHECK(read_into("a", {2, 3}, DType::i32) == path + ": tensor \"a\" is I64, which cannot become i32");
    put(path, whole(one("F32", "[1]", "[0,4]"), 4));
    CHECK(contains(error_of([&] { Safetensors(path).read("a", Tensor::zeros({1}, DType::i32, cpu())); }),
                   "is F32, which cannot become i32"));
    put(path, whole(one("F32", "[1,1]", "[0,4]"), 4));
    CHECK(contains(error_of([&] {
                     Safetensors(path).read("a", Tensor::zeros({1, 1}, DType::packed_int8, cpu()));
                   }),
                   "is F32, which cannot become packed int8"));
  }

  TEST_CASE("a file that becomes shorter while it is open is an error") {
    const TempDir dir;
    const fs::path path = dir / "t.safetensors";
    write_safetensors(path, {{"a", Tensor::zeros({1 << 20}, DType::f32, cpu())}});
    const Safetensors file(path);
    fs::resize_file(path, 1 << 16);
    for (const DType dtype : {DType::f32, DType::f64})
      CHECK(contains(error_of([&] { file.read("a", Tensor::zeros({1 << 20}, dtype, cpu())); }), ": ends at byte"));
  }

  TEST_CASE("a packed tensor has no place in a file") {
    const TempDir dir;
    CHECK(error_of([&] {
            write_safetensors(dir / "out", {{"w", Tensor::zeros({2, 3}, DType::packed_bf16, cpu())}});
          }) == (dir / "out").string() + ": \"w\" is packed bf16, for which the format has no type");
    CHECK_FALSE(fs::exists(dir / "out"));
  }

  TEST_CASE("a checkpoint that cannot be written leaves the old one") {
    const TempDir dir;
    const std::string path = (dir / "old").string();
    write_safetensors(path, {{"a", randn({4}, 1, DType::f32)}});
    const std::string before = read_file(path);
    const Tensor t = randn({4}, 2, DType::f32);
    CHECK(contains(error_of([&] {
                     write_safetensors(path, {{"a", t}, {"a", t}});
                   }),
                   "two tensors would be named \"a\""));
    CHECK(contains(error_of([&] { write_safetensors(path, {{"__metadata__", t}}); }), "named \"__metadata__\""));
    CHECK(contains(error_of([&] { write_safetensors(path, {{"\xff", t}}); }), "not UTF-8"));
    CHECK(contains(error_of([&] { write_safetensors(path, {{"none", Tensor()}}); }), "no tensor for \"none\""));
    CHECK(read_file(path) == before);
    CHECK(contains(error_of([&] { write_safetensors(dir / "no/such/place", {}); }), "no/such/place"));
  }
}

}  // namespace
}  // namespace grt::test
