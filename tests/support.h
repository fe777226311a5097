// What the tests share: a CPU device, random tensors, temporary directories, and running the built binaries.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/philox.h"
#include "core/tensor.h"

namespace grt::test {

// Is this the build with sanitizers? They find in a few passes over the code what they find in many, each of which
// takes some ten times as long there: where numbers are compared over and over, it is over fewer.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

Device& cpu();  // one device for the whole test program

// Standard normal values that depend on (site, index) only.
Tensor randn(Shape shape, std::uint32_t site, DType dtype = DType::f64);
std::vector<double> values(const Tensor& t);                  // as doubles, from f32, f64 or i32
double largest_difference(const Tensor& a, const Tensor& b);  // max |a - b|
bool same_bits(const Tensor& a, const Tensor& b);

// A directory that lives as long as this object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::filesystem::path operator/(const std::string& name) const { return path / name; }
  std::filesystem::path path;
};

// The text of the Error that f() throws; a failed CHECK if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  FAIL_CHECK("no Error was thrown");
  return {};
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

struct Outcome {
  int code;  // exit code, or 128 + signal
  std::string out, err;
};

// While alive, what this process prints is not to be read.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  int stdout_;
};

// A built binary, or any program, at work.
class Running {
 public:
  // Starts GRT_BIN_DIR/tool, or `tool` itself if it is an absolute path, with the arguments (no shell), stdin from
  // /dev/null. `env` holds NAME=VALUE entries to add.
  Running(const std::string& tool, const std::vector<std::string>& arguments, const std::vector<std::string>& env = {},
          const std::string& directory = "");
  ~Running();  // kills it if it still runs
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void signal(int number) const;
  Outcome wait();  // to its end

 private:
  int pid_ = -1, out_ = -1, err_ = -1;
};

inline Outcome run_tool(const std::string& tool, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& env = {}, const std::string& directory = "") {
  return Running(tool, arguments, env, directory).wait();
}

// Environment entries under which numbers have a decimal comma, by a locale compiled into a temporary directory; says
// so and is empty where localedef or its sources (package locales) are missing.
std::vector<std::string> decimal_comma_locale();

std::filesystem::path fixture(const std::string& name);  // a file or directory under tests/fixtures

}  // namespace grt::test
