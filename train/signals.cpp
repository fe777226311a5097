#include "train/signals.h"

#include <csignal>

namespace grt {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
volatile std::sig_atomic_t caught = 0;  // a handler can reach nothing else

// What is ignored (by nohup, or by a shell whose job runs in the background) stays so.
void handle_endings(void (*handler)(int)) {
  for (const int ending : kEnding)
    if (std::signal(ending, handler) == SIG_IGN) std::signal(ending, SIG_IGN);
}

void remember(int signal) {
  caught = signal;
  handle_endings(SIG_DFL);
}

}  // namespace

SignalGuard::SignalGuard() {
  caught = 0;
  handle_endings(remember);
  pipe_ = std::signal(SIGPIPE, SIG_IGN);  // who no longer reads the progress does not end the run
}

SignalGuard::~SignalGuard() {
  handle_endings(SIG_DFL);
  std::signal(SIGPIPE, pipe_);
}

int SignalGuard::received() const { return caught; }

}  // namespace grt
