// The pool behind parallel_for.
//
// A job is published by storing its number of chunks in `left_`. Whoever takes one from a positive `left_` owns a
// chunk, and the job cannot end before that chunk is counted in `done_`. So a job's fields stand still for everyone who
// may read them, and a worker that comes late, or sleeps, is not waited for.
#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace grt {
namespace {

constexpr int kMaxThreads = 1024;

using Clock = std::chrono::steady_clock;
constexpr Clock::duration kSpin = std::chrono::microseconds(50);  // waiting time before the first yield
constexpr Clock::duration kAwake = std::chrono::milliseconds(2);  // idle time after which a worker sleeps

// Asks until ready(), or until `limit` is over: false. For the first `spin` reading the clock is all the pause there
// is, which keeps the answer close to the event; after that other threads get the CPU in between.
template <class Ready>
bool await(Clock::duration spin, Clock::duration limit, Ready&& ready) {
  if (ready()) return true;
  for (const auto begin = Clock::now();;) {
    const Clock::duration waited = Clock::now() - begin;
    if (ready()) return true;
    if (waited >= limit) return false;
    if (waited >= spin) std::this_thread::yield();
  }
}

thread_local int index_of_thread = 0;
thread_local bool inside_chunk = false;  // loops started here are nested ones

struct Job {
  std::int64_t n = 0, grain = 0, chunks = 0;
  detail::Chunk chunk = nullptr;
  void* closure = nullptr;

  void run(std::int64_t i) const { chunk(closure, i * grain, std::min(n, (i + 1) * grain)); }
};

class Pool {
 public:
  Pool() : count_(std::min(allowed_cpus(), kMaxThreads)) {}
  ~Pool() { stop(); }

  int count() const { return count_.load(std::memory_order_relaxed); }
  void resize(int n);
  void run(const Job& job);

 private:
  void start();
  void stop();
  void live(int index);
  bool await_job();
  std::int64_t work();

  // `left_` may fall below zero by late takers; each line that threads fight for is alone in its cache line.
  alignas(64) std::atomic<std::int64_t> left_ = 0;
  alignas(64) std::atomic<std::int64_t> done_ = 0;
  alignas(64) Job job_;
  std::exception_ptr error_;  // of the lowest chunk that threw, under mutex_
  std::int64_t error_chunk_ = 0;
  Clock::duration spin_ = kSpin;

  alignas(64) std::atomic<int> sleepers_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;

  std::mutex caller_;  // one loop at a time
  std::atomic<int> count_;
  std::vector<std::thread> workers_;
};

// Takes and runs chunks until none is left; returns how many it ran.
std::int64_t Pool::work() {
  inside_chunk = true;
  std::int64_t ran = 0;
  while (left_.load(std::memory_order_relaxed) > 0) {
    const std::int64_t left = left_.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) break;
    const std::int64_t i = job_.chunks - left;
    try {
      job_.run(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_ || i < error_chunk_) {
        error_ = std::current_exception();
        error_chunk_ = i;
      }
    }
    ++ran;
  }
  inside_chunk = false;
  return ran;
}

void Pool::run(const Job& job) {
  const std::lock_guard lock(caller_);
  if (workers_.empty()) start();
  job_ = job;
  done_.store(0, std::memory_order_relaxed);
  // Sequentially consistent, as the pair in await_job: either the worker sees the job or we see it asleep.
  left_.store(job.chunks);
  if (sleepers_.load() > 0) {
    { const std::lock_guard asleep(mutex_); }
    wake_.notify_all();
  }
  done_.fetch_add(work(), std::memory_order_relaxed);
  await(spin_, Clock::duration::max(), [&] { return done_.load(std::memory_order_acquire) >= job.chunks; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Spins, then yields, then sleeps. False: the pool stops.
bool Pool::await_job() {
  if (await(spin_, kAwake, [this] { return left_.load(std::memory_order_relaxed) > 0; })) return true;
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [this] { return left_.load() > 0 || stopping_; });
  sleepers_.fetch_sub(1);
  return !stopping_;
}

void Pool::live(int index) {
  index_of_thread = index;
  while (await_job()) {
    if (const std::int64_t ran = work()) done_.fetch_add(ran, std::memory_order_release);
  }
}

void Pool::start() {
  const int n = count();
  // With more threads than CPUs, a spinning one stands in the way of one that works.
  spin_ = n <= allowed_cpus() ? kSpin : Clock::duration::zero();
  try {
    for (int i = 1; i < n; ++i) workers_.emplace_back([this, i] { live(i); });
  } catch (const std::system_error& e) {
    const std::size_t started = workers_.size() + 1;
    stop();
    fail("threads: cannot start thread {} of {}: {}", started + 1, n, e.code().message());
  }
}

void Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
  workers_.clear();
  stopping_ = false;
}

void Pool::resize(int n) {
  const std::lock_guard lock(caller_);
  stop();
  count_ = n;
}

Pool& pool() {
  static Pool the_pool;
  return the_pool;
}

}  // namespace

int thread_count() { return pool().count(); }

void set_thread_count(int n) {
  check(n >= 1 && n <= kMaxThreads, "threads: the count must be between 1 and {}, not {}", kMaxThreads, n);
  if (n != thread_count()) pool().resize(n);
}

int thread_index() { return index_of_thread; }

void detail::run(std::int64_t n, std::int64_t grain, Chunk chunk, void* closure) {
  if (n <= 0) return;
  check(grain >= 1, "parallel_for: the grain must be at least 1, not {}", grain);
  const Job job{n, grain, (n - 1) / grain + 1, chunk, closure};
  if (job.chunks > 1 && !inside_chunk && thread_count() > 1) {
    pool().run(job);
  } else {
    for (std::int64_t i = 0; i < job.chunks; ++i) job.run(i);
  }
}

}  // namespace grt
