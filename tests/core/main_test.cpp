// The frame around a binary, seen from outside: a child process runs it.
#include "core/main.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include "core/files.h"
#include "tests/support.h"

namespace grt::test {
namespace {

struct Seen {
  int code;
  std::string out, err;
};

// Runs the body in a child whose stdout is the file or device `out` (none: closed).
Seen run_body(const std::function<int()>& body, const std::string& out = "") {
  const TempDir dir;
  const std::string to = out.empty() ? (dir / "out").string() : out, err = (dir / "err").string();
  std::fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    close(1);
    if (to != "none") open(to.c_str(), O_WRONLY | O_CREAT, 0600);  // gets number 1
    _exit(run_main("tool", body));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out.empty() ? read_file(to) : "", read_file(err)};
}

TEST_SUITE("core") {
  TEST_CASE("run_main returns the body's code and delivers its output") {
    const Seen seen = run_body([] {
      fmt::print("result\n");
      return 3;
    });
    CHECK(seen.code == 3);
    CHECK(seen.out == "result\n");
    CHECK(seen.err.empty());
  }

  TEST_CASE("run_main turns every exception into one line on stderr and code 1") {
    const Seen error = run_body([]() -> int {
      fmt::print("before\n");
      fail("{}: line 1\nline 2", "file");
    });
    CHECK(error.code == 1);
    CHECK(error.out == "before\n");
    CHECK(error.err == "tool: file: line 1 line 2\n");
    const Seen named = run_body([]() -> int { fail("{}", "\x1b[31mred\ttensor\x7f" + std::string(1 << 21, 'n')); });
    CHECK(named.err.starts_with("tool: ?[31mred tensor?nnn"));
    CHECK(named.err.size() < 5000);
    CHECK(run_body([]() -> int { throw std::bad_alloc(); }).err == "tool: out of memory\n");
    CHECK(run_body([]() -> int { throw std::logic_error("x"); }).err == "tool: unexpected error: x\n");
    const Seen strange = run_body([]() -> int { throw 7; });
    CHECK(strange.code == 1);
    CHECK(strange.err == "tool: unexpected error of unknown type\n");
  }

  TEST_CASE("what was printed before an error stands before it where both go to one place") {
    const TempDir dir;
    const std::string log = (dir / "log").string();
    std::fflush(stdout);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const int both = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(both, 1);
      dup2(both, 2);
      _exit(run_main("tool", []() -> int {
        fmt::print("banner\n");
        fail("no such thing");
      }));
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(read_file(log).starts_with("banner\ntool: no such thing"));
  }

  TEST_CASE("output that does not arrive is an error") {
    const auto print = [] {
      fmt::print("result\n");
      return 0;
    };
    const Seen full = run_body(print, "/dev/full");
    CHECK(full.code == 1);
    CHECK(full.err == "tool: stdout: cannot write: No space left on device\n");
    const Seen closed = run_body(print, "none");
    CHECK(closed.code == 1);
    CHECK(contains(closed.err, "tool: stdout: cannot write: "));
    const Seen long_one = run_body([] { return fmt::print("{}", std::string(1 << 20, 'x')), 0; }, "/dev/full");
    CHECK(long_one.code == 1);
    CHECK(contains(long_one.err, "tool: stdout: "));
    CHECK(contains(long_one.err, "No space left on device"));
    CHECK(run_body([] { return 0; }, "/dev/full").code == 0);
  }

  TEST_CASE("a file that may not grow further is an error and leaves nothing behind") {
    const TempDir dir;
    const Seen seen = run_body([&] {
      const rlimit small{4096, 4096};
      setrlimit(RLIMIT_FSIZE, &small);
      write_file(dir / "f", std::string(10'000, 'x'));
      return 0;
    });
    CHECK(seen.code == 1);
    CHECK(seen.err == "tool: " + (dir / "f").string() + ": cannot write: File too large\n");
    CHECK(fs::is_empty(dir.path));
  }

  TEST_CASE("as many files may be open as the system allows") {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit few{40, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    const Seen seen = run_body([] {
      int opened = 0;
      while (opened < 100 && dup(2) >= 0) ++opened;
      fmt::print("{}", opened);
      return 0;
    });
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(seen.out == "100");
  }

  TEST_CASE("with stdout closed, a file that is opened does not take its place") {
    const TempDir dir;
    run_body(
        [&] {
          FileWriter file(dir / "f");
          file.write("content");
          fmt::print("printed");
          std::fflush(stdout);
          file.commit();
          return 0;
        },
        "none");
    CHECK(read_file(dir / "f") == "content");
  }
}

}  // namespace
}  // namespace grt::test
