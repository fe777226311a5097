#include "tests/cuda/faults.h"

#include <vector>

#include "cuda/mma.cuh"

namespace grt::test {
namespace {

using cuda::cuda_check, cuda::launch, cuda::shared;

constexpr unsigned kAll = cuda::kAllLanes;

// --- kernels ---

__global__ void read_after_write(float* y, const float* x, bool right) {
  float* const s = shared<float, 128, 1>();
  const int t = static_cast<int>(threadIdx.x);
  s[t] = x[t];
  if (right) __syncthreads();
  y[t] = s[(t + 40) % 128];
}

__global__ void write_after_read(float* y, const float* x, bool right) {
  float* const s = shared<float, 128, 2>();
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    s[t] = x[t] + static_cast<float>(i);
    __syncthreads();
    sum += s[127 - t];
    if (right) __syncthreads();
  }
  y[t] = sum;
}

__global__ void within_a_warp(float* y, const float* x, bool right) {
  float* const s = shared<float, 32, 3>();
  const int t = static_cast<int>(threadIdx.x);
  s[t] = x[t];
  if (right) __syncwarp();
  y[t] = s[t ^ 1];
}

__global__ void between_blocks(float* y, bool right) {
  if (!right || blockIdx.x == 0) y[threadIdx.x] = 1;
}

__device__ [[gnu::noinline]] float look(const float* p, int i) { return p[i]; }

__global__ void outside_shared(float* y, bool right) {
  float* const s = shared<float, 32, 4>();
  const int t = static_cast<int>(threadIdx.x);
  s[t] = 1;
  __syncthreads();
  y[t] = look(s, right ? 31 - t : t + 1) > -1e30f ? 1.0f : 2.0f;
}

__global__ void outside_global(float* y, int n, bool right) {
  const int i = static_cast<int>(cuda::global_index());
  if (right ? i < n : i <= n) y[i] = 1;
}

__global__ void uninitialized_shared(float* y, bool right) {
  float* const s = shared<float, 64, 5>();
  const int t = static_cast<int>(threadIdx.x);
  if (right || t < 32) s[t] = 1;
  __syncthreads();
  y[t] = s[63 - t];
}

__global__ void add_one(float* y) { y[threadIdx.x] += 1; }

__global__ void divergent_barrier(float* y, bool right) {
  const int t = static_cast<int>(threadIdx.x);
  if (right || t < 16)
    __syncthreads();
  else
    __syncthreads();
  y[t] = 1;
}

__global__ void exit_before_barrier(float* y, int n, bool right) {
  const int t = static_cast<int>(threadIdx.x);
  if (!right && t >= n) return;
  __syncthreads();
  if (t < n) y[t] = 1;
}

__global__ void shuffle_of_some(float* y, bool right) {
  const int t = static_cast<int>(threadIdx.x);
  float v = 1;
  if (right || t < 16) v += __shfl_xor_sync(kAll, v, 1);
  y[t] = v > 0 ? 1.0f : 0.0f;
}

__global__ void overflow(float* y, int large, bool right) {
  const std::int64_t i = right ? std::int64_t{large} * 4 : large * 4;
  y[threadIdx.x] = i == 0 ? 2.0f : 1.0f;
}

__global__ void scale_by(float* y, const float* x, float factor) { y[threadIdx.x] = factor * x[threadIdx.x]; }

__global__ void scale_by_first(float* y, const float* x, const float* factor) {
  y[threadIdx.x] = factor[0] * x[threadIdx.x];
}

__global__ void much_shared(float* y) {
  float* const s = cuda::dynamic_shared();
  s[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

// The first 32 of 128 threads copy four floats each.
__device__ void start_copies(float* to, const float* from, int rotation) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < 32) cuda::copy_async(to + 4 * t, from + 4 * ((t + rotation) % 32));
  cuda::commit_copies();
}

__global__ void copy_without_wait(float* y, const float* x, bool right) {
  float* const s = cuda::dynamic_shared();
  start_copies(s, x, 10);
  if (right)
    cuda::wait_copies<0>();
  else
    cuda::wait_copies<1>();
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

__global__ void copy_without_barrier(float* y, const float* x, bool right) {
  float* const s = cuda::dynamic_shared();
  start_copies(s, x, 0);
  cuda::wait_copies<0>();
  if (right) __syncthreads();
  y[threadIdx.x] = s[(threadIdx.x + 40) % 128];
}

__global__ void copy_into_what_is_read(float* y, const float* x, bool right) {
  float* const s = cuda::dynamic_shared();
  for (int i = 0; i < 2; ++i) {
    start_copies(s, x, 5 + 5 * i);
    cuda::wait_copies<0>();
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x] + (i ? y[threadIdx.x] : 0);
    if (right) __syncthreads();
  }
}

__global__ void misaligned_copy(float* y, const float* x, bool right) {
  float* const s = cuda::dynamic_shared();
  cuda::copy_async(s + 4 * threadIdx.x, x + (right ? 0 : 1));
  cuda::commit_copies();
  cuda::wait_copies<0>();
  y[threadIdx.x] = s[4 * threadIdx.x] + static_cast<float>(threadIdx.x);
}

__global__ void misaligned_load(float* y, const float* x, bool right) {
  const float4 four = *reinterpret_cast<const float4*>(x + (right ? 0 : 1));
  y[threadIdx.x] = four.x + static_cast<float>(threadIdx.x);
}

__global__ void product_of_some(float* y, bool right) {
  float d[4] = {1, 1, 1, 1};
  if (right || threadIdx.x < 16) cuda::mma_bf16(d, {0, 0, 0, 0}, {0, 0});
  y[threadIdx.x] = d[0];
}

// --- callers ---

// A stream and memory on the device, all of it a caller's.
struct Bench {
  cudaStream_t stream = nullptr;
  std::vector<float*> memory;

  Bench() { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"); }
  ~Bench() {
    cudaStreamSynchronize(stream);
    for (float* p : memory) cudaFree(p);
    cudaStreamDestroy(stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  float* raw(std::size_t n) {
    void* p = nullptr;
    cuda_check(cudaMalloc(&p, n * sizeof(float)), "memory");
    memory.push_back(static_cast<float*>(p));
    return memory.back();
  }
  float* counting(std::size_t n) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
    float* const p = raw(n);
    cuda_check(cudaMemcpyAsync(p, values.data(), n * sizeof(float), cudaMemcpyDefault, stream), "a copy");
    return p;
  }
  std::vector<float> values(const float* p, std::size_t n) {
    std::vector<float> all(n);
    cuda_check(cudaMemcpyAsync(all.data(), p, n * sizeof(float), cudaMemcpyDefault, stream), "a copy");
    cuda_check(cudaStreamSynchronize(stream), "waiting");
    return all;
  }
  template <class F>
  bool holds(const float* p, std::size_t n, F&& expected) {
    const std::vector<float> all = values(p, n);
    for (std::size_t i = 0; i < n; ++i)
      if (!(all[i] == expected(static_cast<int>(i)))) return false;
    return true;
  }
  bool ones(const float* p, std::size_t n) {
    return holds(p, n, [](int) { return 1.0f; });
  }
};

bool missing_event(bool right) {
  Bench first, second;
  cudaEvent_t done = nullptr;
  cuda_check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "an event");
  float *const x = first.counting(32), *const y = first.counting(32), *const z = second.counting(32);
  cuda_check(cudaStreamSynchronize(first.stream), "waiting");
  launch(first.stream, "scale", scale_by, 1, 32, 0, y, x, 2.0f);
  cuda_check(cudaEventRecord(done, first.stream), "recording");
  if (right) cuda_check(cudaStreamWaitEvent(second.stream, done, 0), "waiting for an event");
  launch(second.stream, "scale", scale_by, 1, 32, 0, z, y, 0.5f);
  const bool good = second.holds(z, 32, [](int i) { return static_cast<float>(i); });
  cudaEventDestroy(done);
  return good;
}

bool early_read(bool right) {
  Bench bench;
  void* pinned = nullptr;
  cuda_check(cudaMallocHost(&pinned, 32 * sizeof(float)), "pinned memory");
  const auto* const host = static_cast<const float*>(pinned);
  cuda_check(cudaMemcpyAsync(pinned, bench.counting(32), 32 * sizeof(float), cudaMemcpyDefault, bench.stream),
             "a copy");
  if (right) cuda_check(cudaStreamSynchronize(bench.stream), "waiting");
  const bool good = host[5] == 5;
  cudaFreeHost(pinned);
  return good;
}

bool host_pointer(bool right) {
  Bench bench;
  const std::vector<float> host(32, 1);
  float* const y = bench.raw(32);
  launch(bench.stream, "scale", scale_by, 1, 32, 0, y, right ? bench.counting(32) : host.data(), 0.0f);
  return bench.holds(y, 32, [](int) { return 0.0f; });
}

bool host_access(bool right) {
  Bench bench;
  float* const x = bench.counting(32);
  cuda_check(cudaStreamSynchronize(bench.stream), "waiting");
  return (right ? bench.values(x, 32)[5] : x[5]) == 5;
}

bool too_much_shared(bool right) {
  Bench bench;
  if (right)
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(much_shared),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
               "shared memory");
  float* const y = bench.raw(32);
  launch(bench.stream, "much_shared", much_shared, 1, 32, 65536, y);
  return bench.ones(y, 32);
}

// A fault within one kernel that leaves ones in n elements.
template <class Kernel, class... A>
auto ones(std::size_t n, unsigned blocks, int threads, Kernel kernel, A... arguments) {
  return [=](bool right) {
    Bench bench;
    float* const y = bench.raw(n);
    launch(bench.stream, "a fault", kernel, blocks, threads, 0, y, arguments..., right);
    return bench.ones(y, n);
  };
}

template <class Kernel, class F>
auto mapped(int threads, Kernel kernel, F expected) {
  return [=](bool right) {
    Bench bench;
    const auto n = static_cast<std::size_t>(threads);
    float *const x = bench.counting(n), *const y = bench.raw(n);
    launch(bench.stream, "a fault", kernel, 1, threads, 512, y, x, right);
    return bench.holds(y, n, expected);
  };
}

bool uninitialized_global(bool right) {
  Bench bench;
  float* const y = bench.raw(32);
  if (right) cuda_check(cudaMemsetAsync(y, 0, 128, bench.stream), "zeros");
  launch(bench.stream, "a fault", add_one, 1, 32, 0, y);
  return bench.ones(y, 32);
}

// What `work` enqueues, kept as a graph.
template <class F>
cudaGraphExec_t graph_of(cudaStream_t stream, F&& work) {
  cudaGraph_t kept = nullptr;
  cudaGraphExec_t graph = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning");
  work();
  cuda_check(cudaStreamEndCapture(stream, &kept), "ending");
  cuda_check(cudaGraphInstantiate(&graph, kept, 0), "making a graph");
  cudaGraphDestroy(kept);
  return graph;
}

bool stale_pointer(bool right) {
  Bench bench;
  float* const y = bench.raw(32);
  void* x = nullptr;
  cuda_check(cudaMalloc(&x, 32 * sizeof(float)), "memory");
  cuda_check(cudaMemsetAsync(x, 0, 32 * sizeof(float), bench.stream), "zeros");
  const cudaGraphExec_t graph = graph_of(bench.stream, [&] {
    launch(bench.stream, "scale", scale_by, 1, 32, 0, y, static_cast<const float*>(x), 2.0f);
    launch(bench.stream, "one more", add_one, 1, 32, 0, y);
  });
  if (!right) cudaFree(x);
  cuda_check(cudaGraphLaunch(graph, bench.stream), "launching a graph");
  const bool good = bench.ones(y, 32);
  if (right) cudaFree(x);
  cudaGraphExecDestroy(graph);
  return good;
}

bool frozen_number(bool right) {
  Bench bench;
  float *const y = bench.raw(32), *const ones = bench.raw(32), *const factor = bench.counting(2);
  launch(bench.stream, "ones", scale_by, 1, 32, 0, ones, bench.counting(32), 0.0f);
  launch(bench.stream, "ones", add_one, 1, 32, 0, ones);
  const cudaGraphExec_t graph = graph_of(bench.stream, [&] {
    if (right)
      launch(bench.stream, "scale", scale_by_first, 1, 32, 0, y, ones, factor);
    else
      launch(bench.stream, "scale", scale_by, 1, 32, 0, y, ones, 0.0f);
  });
  const float now = 1;  // what the host would have given
  cuda_check(cudaMemcpyAsync(factor, &now, sizeof now, cudaMemcpyDefault, bench.stream), "a copy");
  cuda_check(cudaGraphLaunch(graph, bench.stream), "launching a graph");
  cudaGraphExecDestroy(graph);
  return bench.ones(y, 32);
}

// call(stream), which may not be made while a graph is.
template <class F>
auto while_kept(F call) {
  return [=](bool right) {
    Bench bench;
    float *const x = bench.counting(32), *const y = bench.raw(32);
    const cudaGraphExec_t graph = graph_of(bench.stream, [&] {
      launch(bench.stream, "scale", scale_by, 1, 32, 0, y, x, 1.0f);
      if (!right) cuda_check(call(bench.stream), "a call");
    });
    cuda_check(cudaGraphLaunch(graph, bench.stream), "launching a graph");
    cudaGraphExecDestroy(graph);
    return bench.holds(y, 32, [](int i) { return static_cast<float>(i); });
  };
}
cudaError_t take_pinned(cudaStream_t) {
  void* pinned = nullptr;
  return cudaMallocHost(&pinned, 4);
}

bool copy_on_null(bool right) {
  Bench bench;
  const float one = 1;
  float* const y = bench.raw(1);
  cuda_check(cudaMemcpyAsync(y, &one, sizeof one, cudaMemcpyDefault, right ? bench.stream : nullptr), "a copy");
  return bench.ones(y, 1);
}

bool query_of_null(bool right) {
  Bench bench;
  return cudaStreamQuery(right ? bench.stream : nullptr) == cudaSuccess;
}

}  // namespace

std::vector<Fault> faults() {
  using emu::Order, emu::Streams;
  const Mode reverse{Order::reverse}, lazy{Order::forward, Streams::lazy}, guard{Order::forward, Streams::eager, true};
  const auto rotated = [](int i) { return static_cast<float>((i + 40) % 128); };
  const auto mirrored = [](int i) { return 3 * static_cast<float>(127 - i) + 3; };
  const auto swapped = [](int i) { return static_cast<float>(i ^ 1); };
  const auto same = [](int i) { return static_cast<float>(i); };
  const auto twice = [](int i) { return static_cast<float>((i + 20) % 128 + (i + 40) % 128); };
  const std::string asan = "AddressSanitizer", tsan = "ThreadSanitizer", ubsan = "runtime error", emu = "emu: ERROR";
  const std::string capturing = "operation not permitted when stream is capturing";
  return {
      {"a read of shared memory before a barrier", mapped(128, read_after_write, rotated), "wrong", "wrong", tsan},
      {"a write to shared memory before a barrier", mapped(128, write_after_read, mirrored), "wrong", "wrong", tsan},
      {"a read before __syncwarp", mapped(32, within_a_warp, swapped), "wrong", "wrong", tsan},
      {"two blocks that write to one place", ones(32, 2, 32, between_blocks), "", "", tsan},
      {"a read beyond shared memory", ones(32, 1, 32, outside_shared), "", asan, ""},
      {"a write beyond global memory", ones(100, 1, 128, outside_global, 100), "signal", asan, "", guard},
      {"a read of uninitialized shared memory", ones(64, 1, 64, uninitialized_shared), "wrong", "wrong", "wrong"},
      {"a read of uninitialized global memory", uninitialized_global, "wrong", "wrong", "wrong"},
      {"a barrier in two places", ones(32, 1, 32, divergent_barrier), emu, emu, emu},
      {"an exit before a barrier", ones(20, 1, 32, exit_before_barrier, 20), emu, emu, emu, reverse},
      {"a shuffle of half a warp", ones(32, 1, 32, shuffle_of_some), emu, emu, emu},
      {"a copy that is read before anyone waited for it", mapped(128, copy_without_wait, rotated), "wrong", "wrong",
       "wrong"},
      {"a copy that others read before a barrier", mapped(128, copy_without_barrier, rotated), "wrong", "wrong", tsan},
      {"a copy into what is being read", mapped(128, copy_into_what_is_read, twice), "wrong", "wrong", tsan},
      {"a copy from a misaligned address", mapped(32, misaligned_copy, same), emu, emu, emu},
      {"a vector load from a misaligned address", mapped(32, misaligned_load, same), "", ubsan, ""},
      {"a product of half a warp", ones(32, 1, 32, product_of_some), emu, emu, emu},
      {"an int that overflows", ones(1, 1, 1, overflow, 0x30000000), "", ubsan, ""},
      {"a stream that does not wait for an event", missing_event, "wrong", "wrong", "wrong", lazy},
      {"a read by the host that does not wait", early_read, "wrong", "wrong", "wrong", lazy},
      {"a host pointer as an argument", host_pointer, emu, emu, emu},
      {"a read of device memory by the host", host_access, "signal", "signal", "", guard},
      {"a graph that reads memory which is gone", stale_pointer, emu, emu, emu},
      {"a graph that keeps a number of its making", frozen_number, "wrong", "wrong", "wrong"},
      {"a wait while a graph is made", while_kept(cudaStreamSynchronize), capturing, capturing, capturing},
      {"a question while a graph is made", while_kept(cudaStreamQuery), capturing, capturing, capturing},
      {"pinned memory taken while a graph is made", while_kept(take_pinned), capturing, capturing, capturing},
      {"a copy on the NULL stream", copy_on_null, emu, emu, emu},
      {"a question about the NULL stream", query_of_null, emu, emu, emu},
      {"more shared memory than was asked for", too_much_shared, "invalid argument", "invalid argument",
       "invalid argument"},
  };
}

}  // namespace grt::test
