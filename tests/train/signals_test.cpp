#include "train/signals.h"

#include <csignal>

#include "tests/support.h"

namespace grt {
namespace {

volatile std::sig_atomic_t outside = 0;
void count_outside(int) { outside = outside + 1; }

TEST_SUITE("train") {
  TEST_CASE("the first signal is remembered while a guard lives, and the next one does what it would without") {
    const SignalGuard guard;
    CHECK(guard.received() == 0);
    std::raise(SIGUSR1);
    CHECK(guard.received() == SIGUSR1);
    CHECK((std::signal(SIGUSR1, SIG_DFL) == SIG_DFL));
    CHECK((std::signal(SIGHUP, SIG_DFL) == SIG_DFL));
  }

  TEST_CASE("what a process was started to ignore stays ignored, under a guard and after it") {
    std::signal(SIGHUP, SIG_IGN);
    {
      const SignalGuard guard;
      std::raise(SIGHUP);
      CHECK(guard.received() == 0);
      std::raise(SIGUSR1);
      std::raise(SIGHUP);
      CHECK(guard.received() == SIGUSR1);
    }
    CHECK((std::signal(SIGHUP, SIG_DFL) == SIG_IGN));
  }

  TEST_CASE("a broken pipe ends nothing while a guard lives, and does afterwards what it did before") {
    const auto before = std::signal(SIGPIPE, count_outside);
    {
      const SignalGuard guard;
      std::raise(SIGPIPE);
      CHECK(outside == 0);
    }
    std::raise(SIGPIPE);
    CHECK(outside == 1);
    std::signal(SIGPIPE, before);
  }
}

}  // namespace
}  // namespace grt
