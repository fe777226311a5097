// What the kernel files share: launches on the backend's stream, sums over a warp and a block, shared memory. nvcc
// compiles them for the GPU; any other compiler, through the emulator, for the CPU.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "cuda/emu/emu.h"
#endif

#include <algorithm>
#include <cmath>

#include "cuda/cuda.h"

namespace grt::cuda {

inline constexpr int kWarp = 32, kBlock = 256, kRowsPerBlock = 4;  // rows: of one warp each
inline constexpr unsigned kAllLanes = 0xffffffffu;

#ifdef __CUDACC__

template <class... P>
cudaError_t launch_kernel(const cudaLaunchConfig_t& config, void (*kernel)(P...),
                          std::type_identity_t<P>... arguments) {
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
// n elements that the threads of a block share; `tag` tells apart the arrays of one kernel.
template <class T, int n, int tag = 0>
__device__ T* shared() {
  __shared__ T memory[n];
  return memory;
}
__device__ inline float* dynamic_shared() {
  extern __shared__ __align__(16) float grt_dynamic_shared[];
  return grt_dynamic_shared;
}

#else

using emu::launch_kernel;
template <class T, int n, int tag = 0>
T* shared() {
  static const char key = 0;
  return static_cast<T*>(emu::shared_memory(&key, n * sizeof(T)));
}
inline float* dynamic_shared() { return emu::dynamic_memory(); }

#endif

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline dim3 blocks_of(std::int64_t n, std::int64_t per_block, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(ceil_div(n, per_block)), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

// Launches `kernel`; a grid without blocks is nothing to do.
template <class... P>
void launch(cudaStream_t stream, const char* name, void (*kernel)(P...), dim3 grid, int block, std::size_t shared_bytes,
            std::type_identity_t<P>... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(block));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cuda_check(launch_kernel(config, kernel, arguments...), name);
}

// --- inside kernels ---

__device__ inline std::int64_t global_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
// The row of this warp; every lane comes to the same.
__device__ inline std::int64_t warp_row() {
  return std::int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
}
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }

__device__ inline void put(float* to, bool add, float value) { *to = add ? *to + value : value; }

template <class T>
__device__ T warp_sum(T x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lanes));
  return x;
}

// The same over a block of kBlock threads, known to all of them.
__device__ inline double block_sum(double x) {
  double* const parts = shared<double, kBlock / kWarp>();
  x = warp_sum(x);
  __syncthreads();  // what an earlier sum left is read
  if (lane_index() == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kBlock / kWarp; ++w) sum += parts[w];
  return sum;
}
__device__ inline float block_max(float x) {
  float* const parts = shared<float, kBlock / kWarp>();
  x = warp_max(x);
  __syncthreads();
  if (lane_index() == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  float top = parts[0];
  for (int w = 1; w < kBlock / kWarp; ++w) top = fmaxf(top, parts[w]);
  return top;
}

// 1 / (1 + e^-x) and what it lacks of 1, both to their last digit.
struct Sigmoid {
  float value, rest;
};
__device__ inline Sigmoid sigmoid(float x) {
  const float e = expf(-fabsf(x)), large = 1 / (1 + e), small = e / (1 + e);
  return x < 0 ? Sigmoid{small, large} : Sigmoid{large, small};
}

// random_normal() of core/philox.h, which no kernel can call.
__device__ inline float normal(const NoiseKey& key, std::uint64_t i) {
  const auto words = random_block(key, i >> 2);
  const std::uint32_t a = i & 2 ? words[2] : words[0], b = i & 2 ? words[3] : words[1];
  const float u = (static_cast<float>(a >> 8) + 0.5f) * 0x1p-24f, v = static_cast<float>(b >> 8) * 0x1p-24f;
  const float radius = sqrtf(-2.0f * logf(u)), angle = 6.28318530718f * v;
  return radius * ((i & 1) ? sinf(angle) : cosf(angle));
}

}  // namespace grt::cuda
