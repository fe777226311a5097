#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace grt {

Progress::Progress(int fd, bool live)
    : fd_(fd), terminal_(live && isatty(fd) == 1), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { wipe(); }

void Progress::live(const std::string& text, std::int64_t done, std::int64_t all, std::int64_t first) {
  using Seconds = std::chrono::duration<double>;
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (drawn_ && done < all && Seconds(now - last_).count() < 0.1)) return;
  last_ = now;
  const double spent = Seconds(now - start_).count();
  const double left = done > first ? spent / static_cast<double>(done - first) * static_cast<double>(all - done) : 0;
  const std::string line =
      fmt::format("\r\x1b[K{} | {:.0f}% | {} left", text, 100.0 * static_cast<double>(done) / static_cast<double>(all),
                  done > first ? human_time(left) : "?");
  [[maybe_unused]] const auto written = write(fd_, line.data(), line.size());
  drawn_ = true;
}

void Progress::line(const std::string& text) {
  wipe();
  std::FILE* stream = fd_ == 2 ? stderr : stdout;
  fmt::print(stream, "{}\n", text);
  std::fflush(stream);
}

void Progress::wipe() {
  if (!drawn_) return;
  [[maybe_unused]] const auto written = write(fd_, "\r\x1b[K", 4);
  drawn_ = false;
}

std::string human_time(double seconds) {
  const auto s = static_cast<long>(seconds + 0.5);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace grt
