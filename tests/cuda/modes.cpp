#include "tests/cuda/modes.h"

#include <fmt/format.h>

#include <array>

#include "core/threads.h"

namespace grt::test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true, kThreadSanitizer = true;
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true, kThreadSanitizer = false;
#else
constexpr bool kSanitized = false, kThreadSanitizer = false;
#endif

}  // namespace

std::string Mode::name() const {
  constexpr std::array kOrders = {"forward", "reverse", "random"}, kStreams = {"eager", "lazy", "random"};
  return fmt::format("threads {}, streams {}{}{}", kOrders[static_cast<std::size_t>(order)],
                     kStreams[static_cast<std::size_t>(streams)], guard ? ", guarded" : "",
                     keep_blocks ? ", blocks kept" : "");
}

std::vector<Mode> modes() {
  using emu::Order, emu::Streams;
  if (kSanitized) return {{Order::random, Streams::lazy, false, false}};
  return {{Order::forward, Streams::eager, false, true},
          {Order::reverse, Streams::lazy, false, true},
          {Order::random, Streams::random, false, true},
          {Order::forward, Streams::lazy, true, false}};
}

Emulated::Emulated(const Mode& mode, DType products) : before_(emu::config) {
  if (kThreadSanitizer) set_thread_count(1);  // the CPU's threads are not instrumented: all they do would seem a race
  emu::config.order = mode.order;
  emu::config.streams = mode.streams;
  emu::config.guard = mode.guard;
  emu::config.late_reads = true;
  device_ = cuda::open(0, products, mode.keep_blocks);
}
Emulated::~Emulated() {
  device_.reset();
  emu::config = before_;
}

}  // namespace grt::test
