// The parts of tests/support.h that are not templates. Child processes are started by fork and execve, without a shell.
#include "tests/support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace grt::test {
namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
};

Pipe open_pipe() {
  int ends[2];
  check(pipe2(ends, O_CLOEXEC) == 0, "run_tool: cannot make a pipe");
  return {ends[0], ends[1]};
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> p;
  for (std::string& w : words) p.push_back(w.data());
  p.push_back(nullptr);
  return p;
}

// Between fork and execve: only calls that are allowed there.
[[noreturn]] void become(char* const* argv, char* const* env, const char* directory, int out, int err) {
  for (const int ending : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signal(ending, SIG_DFL);  // whatever nohup left ignored
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(out, 1);
  dup2(err, 2);
  if (*directory == '\0' || chdir(directory) == 0) execve(argv[0], argv, env);
  _exit(127);
}

// Reads both pipes until their other ends are closed.
void drain(int out, int err, Outcome& outcome) {
  std::array<pollfd, 2> ends = {pollfd{out, POLLIN, 0}, pollfd{err, POLLIN, 0}};
  const std::array<std::string*, 2> texts = {&outcome.out, &outcome.err};
  std::array<char, 65536> block;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends.data(), ends.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      const ssize_t n = read(ends[i].fd, block.data(), block.size());
      if (n > 0) {
        texts[i]->append(block.data(), static_cast<std::size_t>(n));
      } else if (n == 0) {
        close(ends[i].fd);
        ends[i].fd = -1;
      }
    }
  }
}

}  // namespace

Device& cpu() {
  static const std::unique_ptr<Device> device = open_cpu();
  return *device;
}

Tensor randn(Shape shape, std::uint32_t site, DType dtype) {
  const NoiseKey key{2718, 0, site};
  std::vector<double> wide(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = random_normal(key, i);
  if (dtype == DType::f64) return Tensor::from<double>(shape, wide, cpu());
  check(dtype == DType::f32, "randn: f32 or f64, not {}", name_of(dtype));
  const std::vector<float> narrow(wide.begin(), wide.end());
  return Tensor::from<float>(shape, narrow, cpu());
}

template <class T>
std::vector<T> on_host(const Tensor& t) {
  std::vector<T> all(static_cast<std::size_t>(t.numel()));
  t.device().copy(all.data(), t.raw(), t.bytes());
  t.device().sync();
  return all;
}

std::vector<double> values(const Tensor& t) {
  const auto widened = [](const auto& all) { return std::vector<double>(all.begin(), all.end()); };
  if (t.dtype() == DType::i32) return widened(on_host<std::int32_t>(t));
  return visit_real(t.dtype(), [&]<class T>() { return widened(on_host<T>(t)); });
}

double largest_difference(const Tensor& a, const Tensor& b) {
  check(a.shape() == b.shape(), "largest_difference: {} and {}", a.shape(), b.shape());
  const std::vector<double> x = values(a), y = values(b);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    if (!(d <= largest)) largest = d;  // a NaN stays
    if (std::isnan(d)) break;
  }
  return largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const auto bytes = [](const Tensor& t) {
    std::vector<char> all(t.bytes());
    t.device().copy(all.data(), t.raw(), t.bytes());
    t.device().sync();
    return all;
  };
  return bytes(a) == bytes(b);
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "grt-test-XXXXXX").string();
  check(mkdtemp(name.data()) != nullptr, "{}: cannot make a temporary directory", name);
  path = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

Quiet::Quiet() {
  std::fflush(stdout);
  stdout_ = dup(STDOUT_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}
Quiet::~Quiet() {
  std::fflush(stdout);
  dup2(stdout_, STDOUT_FILENO);
  close(stdout_);
}

Running::Running(const std::string& tool, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& env, const std::string& directory) {
  std::vector<std::string> words = {(std::filesystem::path(GRT_BIN_DIR) / tool).string()};
  check(access(words[0].c_str(), X_OK) == 0, "{}: is not there, or cannot be run", words[0]);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> added = env;
  std::vector<char*> argv = pointers(words), environment = pointers(added);
  // Of two entries with one name the first counts, so what is added stands before what is inherited.
  environment.pop_back();
  for (char** e = environ; *e; ++e) environment.push_back(*e);
  environment.push_back(nullptr);

  const Pipe out = open_pipe(), err = open_pipe();
  pid_ = fork();
  check(pid_ >= 0, "{}: cannot fork", tool);
  if (pid_ == 0) become(argv.data(), environment.data(), directory.c_str(), out.write_end, err.write_end);
  close(out.write_end);
  close(err.write_end);
  out_ = out.read_end;
  err_ = err.read_end;
}

Running::~Running() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  wait();
}

void Running::signal(int number) const { kill(pid_, number); }

Outcome Running::wait() {
  Outcome outcome{};
  drain(out_, err_, outcome);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

std::vector<std::string> decimal_comma_locale() {
  static const TempDir dir;
  static const bool made =
      std::system(("localedef -i de_DE -f UTF-8 '" + (dir / "de_DE.UTF-8").string() + "' > /dev/null 2>&1").c_str()) ==
      0;
  if (!made) {
    MESSAGE("localedef made no locale with a decimal comma: results under one were not tried");
    return {};
  }
  return {"LOCPATH=" + dir.path.string(), "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8"};
}

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(GRT_TEST_DIR) / "fixtures" / name;
}

}  // namespace grt::test
