// The frame around every binary: standard streams that exist, errors as one line, output that arrived.
#include "core/main.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "core/error.h"

namespace grt {
namespace {

// A program may be started without stdin, stdout or stderr. The next file it opens would get that number, and what is
// printed would go into it. The mode is the wrong one on purpose: writing to a closed stdout still fails.
void occupy_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

// Token files stay open while they are read, and a corpus may have more of them than the usual 1024.
void allow_many_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

void flush_stdout() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const std::string reason = errno ? std::generic_category().message(errno) : "an earlier write failed";
  std::cout.flush();
  check(flushed && !std::ferror(stdout) && std::cout.good(), "stdout: cannot write: {}", reason);
}

void report(const char* program, std::string text) noexcept {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fflush(stdout);  // what was said before comes before
  std::fputs(program, stderr);
  std::fputs(": ", stderr);
  std::fputs(text.c_str(), stderr);
  std::fputs("\n", stderr);
}

}  // namespace

int run_main(const char* program, const std::function<int()>& body) noexcept {
  occupy_standard_streams();
  allow_many_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` is then an error like that of a full disk
  try {
    const int code = body();
    flush_stdout();
    return code;
  } catch (const Error& e) {
    report(program, e.what());
  } catch (const std::bad_alloc&) {
    report(program, "out of memory");
  } catch (const std::exception& e) {
    report(program, std::string("unexpected error: ") + e.what());
  } catch (...) {
    report(program, "unexpected error of unknown type");
  }
  std::fflush(stdout);
  return 1;
}

}  // namespace grt
