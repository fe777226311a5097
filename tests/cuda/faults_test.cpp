// What the tests of kernels would say of a mistake: each of tests/cuda/faults.h in a process of its own.
#include "tests/cuda/faults.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/support.h"

namespace {

bool reports_end_the_process = false;

}  // namespace

// ThreadSanitizer calls this for every race it finds.
extern "C" void __tsan_on_report(void*) {
  if (reports_end_the_process) _exit(66);
}

namespace grt {
namespace {

#if defined(__SANITIZE_THREAD__)
const auto kSaid = &test::Fault::thread;
#elif defined(__SANITIZE_ADDRESS__)
const auto kSaid = &test::Fault::address;
#else
const auto kSaid = &test::Fault::plain;
#endif

constexpr int kWrongResult = 3;

int run(const test::Fault& fault, bool right) {
  reports_end_the_process = true;
  for (const int number : {SIGABRT, SIGSEGV, SIGILL, SIGFPE}) std::signal(number, SIG_DFL);  // doctest handles them
  emu::config.order = fault.mode.order;
  emu::config.streams = fault.mode.streams;
  emu::config.guard = fault.mode.guard && fault.*kSaid == "signal";  // else a sanitizer's red zones
  try {
    return fault.run(right) ? 0 : kWrongResult;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

// What a process that runs the fault says: "" for a good result, "wrong", "signal", or its last words.
std::string outcome(const test::Fault& fault, bool right) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const test::Outcome o = test::run_tool(program, {"--no-skip", "--test-suite=one fault"},
                                         {"GRT_FAULT=" + fault.name, std::string("GRT_RIGHT=") + (right ? "1" : "")});
  if (o.code == 0) return {};
  if (o.code == kWrongResult) return "wrong";
  return o.err.empty() ? "signal" : o.err;
}

TEST_SUITE("one fault") {
  TEST_CASE("the one that the environment names" * doctest::skip()) {
    const char *const name = std::getenv("GRT_FAULT"), *const right = std::getenv("GRT_RIGHT");
    REQUIRE((name && right));
    const std::vector<test::Fault> all = test::faults();
    const auto it = std::find_if(all.begin(), all.end(), [&](const test::Fault& f) { return f.name == name; });
    REQUIRE(it != all.end());
    const int code = run(*it, *right != '\0');
    std::fflush(nullptr);
    _exit(code);
  }
}

TEST_SUITE("cuda") {
  TEST_CASE("every mistake is seen, and its right form is not taken for one") {
    for (const test::Fault& fault : test::faults()) {
      CAPTURE(fault.name);
      const std::string& expected = fault.*kSaid;
      const std::string said = outcome(fault, false);
      if (!expected.empty()) CHECK_MESSAGE(test::contains(said, expected), said);
      CHECK(outcome(fault, true) == "");
    }
  }
}

}  // namespace
}  // namespace grt
