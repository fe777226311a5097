// The one thread pool of the CPU backend.
//
// parallel_for cuts [0, n) into chunks of `grain` (the last may be shorter) that threads take as they become free.
// How the range is cut depends on n and grain alone, never on the number of threads: a kernel that gives each chunk
// its own output, or its own partial sum added up in chunk order afterwards, is bit-equal for any thread count.
// Called from inside a chunk, it runs there, serially: kernels may call kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/cpus.h"

namespace grt {

int thread_count();            // threads that work on a parallel_for, the caller included; first value: allowed_cpus()
void set_thread_count(int n);  // 1 <= n <= 1024; not while a parallel_for runs

// Index of the calling thread in the pool, 0 (the caller) .. thread_count() - 1: for per-thread scratch memory.
int thread_index();

namespace detail {
using Chunk = void (*)(void* closure, std::int64_t begin, std::int64_t end);
void run(std::int64_t n, std::int64_t grain, Chunk chunk, void* closure);
}  // namespace detail

// Calls f(begin, end) for every chunk of [0, n). An exception from f is thrown again here, after all chunks ended; of
// several, the one from the lowest chunk.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  using Closure = std::remove_reference_t<F>;
  detail::run(
      n, grain, [](void* c, std::int64_t begin, std::int64_t end) { (*static_cast<Closure*>(c))(begin, end); },
      const_cast<std::remove_const_t<Closure>*>(&f));
}

}  // namespace grt
