// The pool behind parallel_for.
//
// A job is published by giving each thread a share of its chunks: their number goes into `left`. Whoever takes one from
// a positive `left` owns a chunk, and the job cannot end before that chunk is counted in `done_`. So a job's fields
// stand still for everyone who may read them, and a worker that comes late, or sleeps, is not waited for.
//
// A thread takes the chunks of its own share first, and then what others have left. So what a loop leaves in a core's
// cache is there when the next loop goes over the same rows.
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

// Chunks of a job: of those before `end`, the last `left` are to be taken. It may fall below zero by late takers.
struct alignas(64) Share {
  std::atomic<std::int64_t> left = 0;
  std::int64_t end = 0;
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
  bool await_job(std::uint64_t& seen);
  std::int64_t work();
  void run_chunk(std::int64_t i);

  // Each line that threads fight for is alone in its cache line.
  alignas(64) std::atomic<std::uint64_t> jobs_ = 0;  // published so far
  alignas(64) std::atomic<std::int64_t> done_ = 0;   // chunks
  std::vector<Share> shares_;                        // one for each thread
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

void Pool::run_chunk(std::int64_t i) {
  try {
    job_.run(i);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_ || i < error_chunk_) {
      error_ = std::current_exception();
      error_chunk_ = i;
    }
  }
}

// Takes and runs chunks until none is left; returns how many it ran.
std::int64_t Pool::work() {
  inside_chunk = true;
  std::int64_t ran = 0;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(static_cast<std::size_t>(index_of_thread) + i) % shares_.size()];
    while (share.left.load(std::memory_order_relaxed) > 0) {
      const std::int64_t left = share.left.fetch_sub(1, std::memory_order_acquire);
      if (left <= 0) break;
      run_chunk(share.end - left);
      ++ran;
    }
  }
  inside_chunk = false;
  return ran;
}

void Pool::run(const Job& job) {
  const std::lock_guard lock(caller_);
  if (workers_.empty()) start();
  job_ = job;
  done_.store(0, std::memory_order_relaxed);
  const auto threads = static_cast<std::int64_t>(shares_.size());
  for (std::int64_t i = 0; i < threads; ++i) {
    const std::int64_t begin = i * job.chunks / threads, end = (i + 1) * job.chunks / threads;
    Share& share = shares_[static_cast<std::size_t>(i)];
    share.end = end;
    share.left.store(end - begin, std::memory_order_release);
  }
  // Sequentially consistent, as the pair in await_job: either the worker sees the job or we see it asleep.
  jobs_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { const std::lock_guard asleep(mutex_); }
    wake_.notify_all();
  }
  done_.fetch_add(work(), std::memory_order_relaxed);
  await(spin_, Clock::duration::max(), [&] { return done_.load(std::memory_order_acquire) >= job.chunks; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Spins, then yields, then sleeps, until there are more jobs than were seen. False: the pool stops.
bool Pool::await_job(std::uint64_t& seen) {
  const auto published = [&] { return jobs_.load() != seen; };
  if (!await(spin_, kAwake, published)) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return published() || stopping_; });
    sleepers_.fetch_sub(1);
    if (stopping_) return false;
  }
  seen = jobs_.load();
  return true;
}

void Pool::live(int index) {
  index_of_thread = index;
  std::uint64_t seen = 0;
  while (await_job(seen)) {
    if (const std::int64_t ran = work()) done_.fetch_add(ran, std::memory_order_release);
  }
}

void Pool::start() {
  const int n = count();
  // With more threads than CPUs, a spinning one stands in the way of one that works.
  spin_ = n <= allowed_cpus() ? kSpin : Clock::duration::zero();
  shares_ = std::vector<Share>(static_cast<std::size_t>(n));
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
