// Runs CUDA kernels on the CPU: a kernel file compiled by a C++ compiler includes this (through cuda/device.cuh)
// instead of what only nvcc knows. Types and prototypes are those of NVIDIA's headers, the definitions are here.
//
// A CUDA thread is a fiber that starts when its turn comes; one that never waits costs a function call. __syncthreads,
// __syncwarp, shuffles and votes are meetings of fibers, and what a meeting must not be (divergent, of lanes that have
// exited, never complete) is an error that names the place. The order of threads and blocks, and when the work of a
// stream is done, are chosen by emu::config. Shared and device memory begin as NaN. Under AddressSanitizer every
// allocation has red zones, under ThreadSanitizer every CUDA thread is a thread of its own: races are reported.
//
// cuda/emu/mma.h models what is PTX on a GPU. There is no other inline PTX, no cooperative group, no dynamic
// parallelism; blocks run one after another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>

#undef __launch_bounds__
#define __launch_bounds__(...)

#ifdef __SANITIZE_THREAD__
#define GRT_EMU_UNSEEN __attribute__((no_sanitize_thread, noinline))
#else
#define GRT_EMU_UNSEEN
#endif

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace grt::emu {

enum class Order { forward, reverse, random };  // of a grid's blocks and of their threads
enum class Streams { eager, lazy, random };     // lazy: work waits until somebody waits for it

// What cuBLASLt finds: a way for every product; only for those without a bias; only for those that need no workspace
// either; none.
enum class Algorithms { all, without_bias, without_workspace, none };

struct Config {
  Order order = Order::forward;
  Streams streams = Streams::eager;
  bool guard = false;  // device memory is out of reach while host code runs, and ends at a page without access
  int devices = 1;     // as many as GRT_EMU_DEVICES in the environment says
  std::uint64_t seed = 1;
  bool late_reads = false;  // of pageable host memory: when the stream comes to the copy, and not at once
  int capability = 90;      // of device 0, without the point; the others are of 9.0
  bool idle = false;        // kernels leave everything as it is
  cudaError_t launch_error = cudaSuccess;
  Algorithms algorithms = Algorithms::all;
};
extern Config config;

// How much was run, for tests that want to know that something was.
struct Counters {
  std::uint64_t launches = 0, blocks = 0, switches = 0, graphs = 0, graph_launches = 0;
};
extern Counters counters;

[[noreturn]] void fatal(const char* format, ...) __attribute__((format(printf, 1, 2)));

// --- inside a kernel ---

unsigned lane();
void* shared_memory(const void* key, std::size_t bytes);  // of the block; the first call for a key makes it
float* dynamic_memory();                                  // the launch's
void block_barrier(const char* file, int line);

// Every lane of `mask` brings its argument; the last one to come runs meet(arguments, mask) while all wait.
using Meet = void (*)(void** arguments, unsigned mask);
void warp_meeting(unsigned mask, const char* kind, Meet meet, void* argument, bool orders_memory, const char* file,
                  int line);

template <class T>
struct Shuffled {
  T value, result;
  unsigned source;
};
template <class T>
GRT_EMU_UNSEEN void shuffle_all(void** arguments, unsigned mask) {
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    auto* const mine = static_cast<Shuffled<T>*>(arguments[__builtin_ctz(rest)]);
    if (!((mask >> mine->source) & 1u))
      fatal("shuffle: lane %d reads lane %u, which is not in mask 0x%08x", __builtin_ctz(rest), mine->source, mask);
    mine->result = static_cast<Shuffled<T>*>(arguments[mine->source])->value;
  }
}
template <class T>
T shuffle(unsigned mask, T value, unsigned source, const char* kind, const char* file, int line) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  Shuffled<T> argument{value, value, source};
  warp_meeting(mask, kind, &shuffle_all<T>, &argument, false, file, line);
  return argument.result;
}

struct Vote {
  bool value;
  unsigned result;
};
GRT_EMU_UNSEEN inline void count_votes(void** arguments, unsigned mask) {
  unsigned votes = 0;
  for (unsigned rest = mask; rest; rest &= rest - 1)
    if (static_cast<Vote*>(arguments[__builtin_ctz(rest)])->value) votes |= rest & -rest;
  for (unsigned rest = mask; rest; rest &= rest - 1) static_cast<Vote*>(arguments[__builtin_ctz(rest)])->result = votes;
}

// --- launching ---

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
  const void* kernel;
};
cudaError_t check_launch(const Launch& launch);   // what the hardware would refuse
void check_pointer(const void* p, int argument);  // it must be null or in device memory
void run_grid(const Launch& launch, const std::function<void()>& thread);
void enqueue(cudaStream_t stream, std::function<void()> work);

template <class... P>
cudaError_t launch_kernel(const cudaLaunchConfig_t& c, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  const Launch launch{c.gridDim, c.blockDim, c.dynamicSmemBytes, c.stream, reinterpret_cast<const void*>(kernel)};
  if (const cudaError_t e = check_launch(launch); e != cudaSuccess) return e;
  const auto check = [](const P&... values) {
    int position = 0;
    const auto check_one = [&position]<class T>(const T& argument) {
      if constexpr (std::is_pointer_v<T>) check_pointer(argument, position);
      ++position;
    };
    (check_one(values), ...);
  };
  check(arguments...);
  enqueue(c.stream, [launch, kernel, check, values = std::tuple<P...>(arguments...)] {
    std::apply(check, values);  // a graph's may have become stale
    run_grid(launch, [&] { std::apply(kernel, values); });
  });
  return cudaSuccess;
}

}  // namespace grt::emu

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::grt::emu::block_barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::grt::emu::warp_meeting(
      mask, "__syncwarp", [](void**, unsigned) {}, nullptr, true, file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const unsigned source = ::grt::emu::lane() ^ static_cast<unsigned>(lanes);
  return ::grt::emu::shuffle(mask, value, source, "__shfl_xor_sync", file, line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  ::grt::emu::Vote argument{predicate != 0, 0};
  ::grt::emu::warp_meeting(mask, "__ballot_sync", &::grt::emu::count_votes, &argument, false, file, line);
  return argument.result;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
