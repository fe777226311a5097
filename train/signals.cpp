#include "train/signals.h"

#include <csignal>

namespace grt {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
volatile std::sig_atomic_t caught = 0;  // a handler can reach nothing else

void remember(int signal) {
  caught = signal;
  for (const int ending : kEnding) std::signal(ending, SIG_DFL);
}

}  // namespace

SignalGuard::SignalGuard() {
  caught = 0;
  for (const int ending : kEnding) std::signal(ending, remember);
  std::signal(SIGPIPE, SIG_IGN);  // who no longer reads the progress does not end the run
}

SignalGuard::~SignalGuard() {
  for (const int ending : kEnding) std::signal(ending, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
}

int SignalGuard::received() const { return caught; }

}  // namespace grt
