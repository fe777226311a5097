// What the tests of kernels would say of a mistake: each of tests/cuda/faults.h in a process of its own.
#include "tests/cuda/faults.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "core/files.h"
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

// What a child that runs the fault says: "" for a good result, "wrong", "signal", or its last words.
std::string outcome(const test::Fault& fault, bool right, const std::string& log) {
  std::fflush(nullptr);
  const pid_t child = fork();
  check(child >= 0, "cannot fork");
  if (child == 0) {
    if (!std::freopen(log.c_str(), "w", stderr)) _exit(1);
    reports_end_the_process = true;
    emu::config.order = fault.mode.order;
    emu::config.streams = fault.mode.streams;
    emu::config.guard = fault.mode.guard && fault.*kSaid == "signal";  // a sanitizer's red zones else
    for (const int number : {SIGABRT, SIGSEGV, SIGILL, SIGFPE}) std::signal(number, SIG_DFL);  // doctest handles them
    int code = kWrongResult;
    try {
      code = fault.run(right) ? 0 : kWrongResult;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      code = 1;
    }
    std::fflush(stderr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kWrongResult) return "wrong";
  const std::string words = read_file(log);
  return words.empty() ? "signal" : words;
}

TEST_SUITE("faults") {
  TEST_CASE("every mistake is seen, and its right form is not taken for one") {
    const test::TempDir dir;
    const std::string log = (dir / "log").string();
    for (const test::Fault& fault : test::faults()) {
      CAPTURE(fault.name);
      const std::string& expected = fault.*kSaid;
      const std::string said = outcome(fault, false, log);
      if (!expected.empty()) CHECK_MESSAGE(test::contains(said, expected), said);
      CHECK(outcome(fault, true, log) == "");
    }
  }
}

}  // namespace
}  // namespace grt
