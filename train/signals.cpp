#include "train/signals.h"

#include <csignal>

namespace grt {
namespace {

volatile std::sig_atomic_t caught = 0;  // a handler can reach nothing else

void remember(int signal) {
  caught = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

SignalGuard::SignalGuard() {
  caught = 0;
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

SignalGuard::~SignalGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int SignalGuard::received() const { return caught; }

}  // namespace grt
