// Attention on tensor cores: what its forward and backward kernels share. In a block one operand's tile of 64 rows
// stands, 16 rows to each of four warps, while the other's tiles pass, each copied while the one before is in use.
#pragma once

#include "cuda/attention.cuh"
#include "cuda/mma.cuh"

namespace grt::cuda {

inline constexpr int kStanding = 64, kFlashBlock = kStanding / 16 * kWarp;
inline constexpr float kLog2e = 1.44269504089f;

// Rows of a passing tile: as many as leave registers and shared memory for two blocks on a multiprocessor.
template <int kWidth>
inline constexpr int kPassing = kWidth > 64 ? 32 : 64;

// Is there a kernel for heads of this width?
constexpr bool on_tensor_cores(int width) { return width == 32 || width == 64 || width == 128; }

template <int n>
struct Width {};
template <class F>
void for_tile_width(int width, F&& run) {
  if (width == 32)
    run(Width<32>{});
  else if (width == 64)
    run(Width<64>{});
  else
    run(Width<128>{});
}

__device__ inline Bf16* tiles() { return reinterpret_cast<Bf16*>(dynamic_shared()); }

// Where this lane's fragment of the block's 64 rows lies: elements (row, column), (row, column + 1) and the same of row
// + 8, in every eighth column from there on.
struct Fragment {
  int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the warp's first
  int row = warp_row + lane_index() / 4, column = lane_index() % 4 * 2;
};

// Two matrices of a head whose tiles pass together, and the memory of two tiles of each.
struct Passing {
  const Bf16* matrix;
  std::int64_t stride;  // of its rows
  Bf16* tiles;
};

// Calls body(begin, a's tile, b's tile) for rows [begin, begin + kRows) of both, from `begin` to `end`, in order; a
// tile is being copied while body() is at the one before. Copies that were issued before are there at the first call.
template <int kWidth, int kRows, class F>
__device__ __forceinline__ void pass_tiles(const Passing& a, const Passing& b, std::int64_t begin, std::int64_t end,
                                           F&& body) {
  const auto tile = [](const Passing& p, int turn) { return p.tiles + turn * kRows * kTileRow<kWidth>; };
  const auto load = [&](std::int64_t first, int turn) {
    for (const Passing* p : {&a, &b}) copy_tile<kWidth, kRows>(tile(*p, turn), p->matrix, p->stride, first, end);
  };
  load(begin, 0);
  commit_copies();
  for (int turn = 0; begin < end; begin += kRows, turn ^= 1) {
    if (begin + kRows < end) load(begin + kRows, turn ^ 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    body(begin, tile(a, turn), tile(b, turn));
    __syncthreads();  // the tiles are used up
  }
}

// attention_bf16.cu. q lies as in qkv; lse may be null.
void flash_attention(const AttentionCall& call, float* out, float* lse, const Bf16* q, const Bf16* k, const Bf16* v,
                     Strides cache);

// attention_bf16_backward.cu. qkv is rounded; delta (B, H, T) as of attention_backward.cu.
void flash_attention_backward(const AttentionCall& call, const Into& dqkv, const Bf16* dout, const Bf16* qkv,
                              const float* lse, const float* delta);

}  // namespace grt::cuda
