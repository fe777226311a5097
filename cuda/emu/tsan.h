// How ThreadSanitizer is told of CUDA threads: each is one of its fibers, a barrier is a release and an acquire on an
// object of its own, blocks are concurrent. Without it everything here does nothing. The emulator itself is compiled
// without -fsanitize=thread and always runs as the host's thread; only kernels run as their own.
#pragma once

#include <cstddef>

#ifdef GRT_EMU_TSAN
#include <sanitizer/tsan_interface.h>

#include <vector>
#endif

namespace grt::emu {

#ifdef GRT_EMU_TSAN

inline constexpr bool kTsan = true;

class Tsan {
 public:
  // More threads than any launch before needs more fibers; make(i) gives the i-th its stack.
  template <class F>
  void begin_grid(std::size_t threads, F&& make) {
    host_ = __tsan_get_current_fiber();
    for (; fibers_.size() < threads; make(fibers_.size() - 1)) fibers_.push_back(__tsan_create_fiber(0));
  }
  // Threads of one index in two blocks are different fibers as far as there are enough, so that blocks race.
  void begin_block() {
    ++turn_;
    barrier_ = fresh();
    for (void*& warp : warps_) warp = fresh();
    __tsan_release(&start_);
  }
  void end_grid() { __tsan_acquire(&end_); }

  std::size_t index(unsigned thread) const { return (thread + turn_) % fibers_.size(); }
  void become_thread(unsigned thread) { __tsan_switch_to_fiber(fibers_[index(thread)], 1); }
  void become_host() { __tsan_switch_to_fiber(host_, 1); }
  void thread_begins() { __tsan_acquire(&start_); }
  void thread_ends() { __tsan_release(&end_); }

  void* barrier() const { return barrier_; }
  void* warp(unsigned w) const { return warps_[w]; }
  void* start() { return &start_; }
  void barrier_done() { barrier_ = fresh(); }
  void warp_done(unsigned w) { warps_[w] = fresh(); }
  void release(void* object) {
    if (object) __tsan_release(object);
  }
  void acquire(void* object) {
    if (object) __tsan_acquire(object);
  }

 private:
  // Every generation of a barrier is an object of its own: who comes early to the next is not seen by who leaves late.
  void* fresh() { return &objects_[next_++ % sizeof objects_]; }

  std::vector<void*> fibers_;
  void* host_ = nullptr;
  unsigned turn_ = 0, next_ = 0;
  char start_ = 0, end_ = 0, objects_[8192] = {};
  void *barrier_ = nullptr, *warps_[32] = {};
};

#else

inline constexpr bool kTsan = false;

class Tsan {
 public:
  template <class F>
  void begin_grid(std::size_t, F&&) {}
  void begin_block() {}
  void end_grid() {}
  std::size_t index(unsigned) const { return 0; }
  void become_thread(unsigned) {}
  void become_host() {}
  void thread_begins() {}
  void thread_ends() {}
  void* barrier() const { return nullptr; }
  void* warp(unsigned) const { return nullptr; }
  void* start() { return nullptr; }
  void barrier_done() {}
  void warp_done(unsigned) {}
  void release(void*) {}
  void acquire(void*) {}
};

#endif

}  // namespace grt::emu
