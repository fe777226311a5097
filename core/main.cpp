// The frame around every binary: standard streams that exist, errors as one line, output that arrived.
#include "core/main.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

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

// One line, whatever names a file may have put into it: none that moves a terminal's cursor or fills its screen.
void report(const char* program, std::string text) noexcept {
  constexpr std::size_t kMost = 4096;
  if (text.size() > kMost) text.replace(kMost / 2, text.size() - kMost, " ... ");
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : '?';
  std::fflush(stdout);                                      // what was said before comes before
  std::fprintf(stderr, "%s: %s\n", program, text.c_str());  // one write, which other processes' lines do not cut
}

// The body's exit code; or none after an exception, with what there is to say about it in `error`.
std::optional<int> attempt(const std::function<int()>& body, std::string& error) noexcept {
  try {
    const int code = body();
    flush_stdout();
    return code;
  } catch (const Error& e) {
    error = e.what();
  } catch (const std::bad_alloc&) {
    error = "out of memory";
  } catch (const std::exception& e) {
    error = std::string(std::ferror(stdout) ? "stdout: " : "unexpected error: ") + e.what();  // fmt::print throws
  } catch (...) {
    error = "unexpected error of unknown type";
  }
  return std::nullopt;
}

void prepare() {
  occupy_standard_streams();
  allow_many_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` is then an error like that of a full disk
}

// What fails on all ranks is said by rank 0, which ends the others while they wait here for their turn.
void fail_together(const char* program, const std::string& error, Comm& comm) {
  if (comm.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  report(program, fmt::format("rank {} of {}: {}", comm.rank(), comm.size(), error));
  comm.abort(1);
}

}  // namespace

int run_main(const char* program, const std::function<int()>& body) noexcept {
  prepare();
  std::string error;
  if (const std::optional<int> code = attempt(body, error)) return *code;
  report(program, std::move(error));
  std::fflush(stdout);
  return 1;
}

int run_ranks(const char* program, const std::function<int(Comm&)>& body) noexcept {
  std::unique_ptr<Comm> comm;
  return run_main(program, [&] {
    comm = open_comm();
    if (comm->size() == 1) return body(*comm);
    if (comm->rank() > 0) check(std::freopen("/dev/null", "w", stdout), "stdout: cannot be silenced");
    std::string error;
    const std::optional<int> code = attempt([&] { return body(*comm); }, error);
    if (!code) fail_together(program, error, *comm);
    comm->barrier();  // a launcher ends all ranks as soon as one is gone with a code that is not 0
    return code.value_or(1);
  });
}

}  // namespace grt
