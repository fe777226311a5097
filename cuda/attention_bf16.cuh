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

// attention_bf16.cu. q lies as in qkv; lse may be null.
void flash_attention(const AttentionCall& call, float* out, float* lse, const Bf16* q, const Bf16* k, const Bf16* v,
                     Strides cache);

// attention_bf16_backward.cu. qkv is rounded; delta (B, H, T) as of attention_backward.cu.
void flash_attention_backward(const AttentionCall& call, const Into& dqkv, const Bf16* dout, const Bf16* qkv,
                              const float* lse, const float* delta);

}  // namespace grt::cuda
