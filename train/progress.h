// What a long run shows: plain lines, and on a terminal one live line that is drawn over and over, with the time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace grt {

class Progress {
 public:
  explicit Progress(int fd = 1, bool live = true);  // 1: stdout, 2: stderr; live false: no live line

  ~Progress();  // wipes the live line

  // Redraws the live line at most ten times a second; nothing when the output is not a terminal.
  // `done` of `all` units of work are finished, `first` of them before this process began.
  void live(const std::string& text, std::int64_t done, std::int64_t all, std::int64_t first = 0);
  void line(const std::string& text);  // a line that stays, above the live one

 private:
  void wipe();

  int fd_;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_{};
};

std::string human_time(double seconds);  // "1:02:03", "4:05"

}  // namespace grt
