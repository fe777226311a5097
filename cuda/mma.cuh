// Tensor cores, for kernels: asynchronous copies into shared memory, matrices of bf16 as a warp holds them, and their
// product. All of it is PTX for compute capability 8.0; the emulator has models of it (cuda/emu/mma.h).
//
// A fragment is what a lane holds of a matrix, as the PTX ISA lays it out: with g = lane / 4 and t = 2 (lane % 4),
//   a (16, 16): pairs from (g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8);   b (16, 8): pairs down from (t, g), (t + 8,
//   g); c (16, 8), f32: (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1).
#pragma once

#include <cuda_bf16.h>

#include "cuda/device.cuh"
#ifndef __CUDACC__
#include "cuda/emu/mma.h"
#endif

namespace grt::cuda {

using Bf16 = __nv_bfloat16;

#ifdef __CUDACC__

// Starts to copy 16 bytes from global to shared memory, both aligned to 16; zeros unless they are `present`.
__device__ inline void copy_async(void* to, const void* from, bool present = true) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
// Copies started so far and not yet in a group are one.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread but the last `keep`.
template <int keep>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(keep) : "memory");
}

// Four matrices of 8 x 8; lane l gives the address of row l % 8 of matrix l / 8, aligned to 16.
template <bool transposed>
__device__ void load_matrices(std::uint32_t (&x)[4], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// d += a b
__device__ inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

using emu::commit_copies, emu::copy_async, emu::load_matrices, emu::mma_bf16, emu::wait_copies;

#endif

// Two neighbours of a fragment, rounded.
__device__ inline std::uint32_t pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// A tile in shared memory: rows of kWidth elements, 16 bytes apart from a multiple of 128, so that the eight rows of a
// matrix meet different banks.
template <int kWidth>
inline constexpr int kTileRow = kWidth + 8;

// Starts to copy rows first..first+kRows-1 of a head into a tile; zeros from row `end` on. By all threads of the block.
template <int kWidth, int kRows>
__device__ void copy_tile(Bf16* tile, const Bf16* from, std::int64_t stride, std::int64_t first, std::int64_t end) {
  constexpr int kChunk = 8, kPerRow = kWidth / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPerRow; i += static_cast<int>(blockDim.x)) {
    const int r = i / kPerRow, c = i % kPerRow * kChunk;
    const bool present = first + r < end;
    copy_async(tile + r * kTileRow<kWidth> + c, from + (present ? (first + r) * stride : 0) + c, present);
  }
}

// c (16, kRows) += a b^T for 16 rows of one tile and all of another.
template <int kWidth, int kRows>
__device__ void multiply_transposed(float (&c)[kRows / 8][4], const Bf16* a, const Bf16* b) {
  const int lane = lane_index();
  const Bf16* const rows = a + lane % 16 * kTileRow<kWidth> + lane / 16 * 8;
  const Bf16* const columns = b + (lane / 16 * 8 + lane % 8) * kTileRow<kWidth> + lane / 8 % 2 * 8;
#pragma unroll 2  // all at once would take more registers than there are
  for (int k = 0; k < kWidth; k += 16) {
    std::uint32_t left[4];
    load_matrices<false>(left, rows + k);
#pragma unroll
    for (int n = 0; n < kRows / 8; n += 2) {
      std::uint32_t right[4];
      load_matrices<false>(right, columns + n * 8 * kTileRow<kWidth> + k);
      mma_bf16(c[n], left, {right[0], right[1]});
      mma_bf16(c[n + 1], left, {right[2], right[3]});
    }
  }
}

// c (16, kWidth) += a b, a (16, kRows) being a fragment c of before, rounded, and b a tile.
template <int kWidth, int kRows>
__device__ void multiply(float (&c)[kWidth / 8][4], const float (&a)[kRows / 8][4], const Bf16* b) {
  const int lane = lane_index();
  const Bf16* const rows = b + lane % 16 * kTileRow<kWidth> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kRows / 8; k += 2) {
    const std::uint32_t left[4] = {pair_of(a[k][0], a[k][1]), pair_of(a[k][2], a[k][3]),
                                   pair_of(a[k + 1][0], a[k + 1][1]), pair_of(a[k + 1][2], a[k + 1][3])};
#pragma unroll
    for (int n = 0; n < kWidth / 8; n += 2) {
      std::uint32_t right[4];
      load_matrices<true>(right, rows + k * 8 * kTileRow<kWidth> + n * 8);
      mma_bf16(c[n], left, {right[0], right[1]});
      mma_bf16(c[n + 1], left, {right[2], right[3]});
    }
  }
}

}  // namespace grt::cuda
