// What the attention kernels share: a call's heads in memory; and what those of any width in f32 do: tiles of rows in
// shared memory, a block for 32 rows (queries, or keys), four threads to each, of whose columns a thread owns every
// fourth.
#pragma once

#include "cuda/device.cuh"

namespace grt::cuda {

inline constexpr int kTile = 32, kTeam = 4, kAttentionBlock = kTile * kTeam;

// Rows of one head are `row` elements apart, heads `head`, sequences `batch`.
struct Strides {
  std::int64_t batch, head, row;
  __device__ std::int64_t at(std::int64_t b, std::int64_t h) const { return b * batch + h * head; }
};

// Queries at positions past..past+queries-1, keys at 0..past+queries-1; heads of `width` columns.
struct Extents {
  std::int64_t queries;
  Scalar<std::int64_t> past;
  int width;
  float scale;  // of the scores: 1 / sqrt(width)
};

// qkv (B, n, 3C), out (B, n, C) of H heads, with `past` positions before.
struct AttentionCall {
  cudaStream_t stream;
  std::int64_t batch, heads;
  Extents extents;
  Strides wide, narrow;  // of qkv and out

  AttentionCall(cudaStream_t s, const Shape& out, std::int64_t h, Scalar<std::int64_t> past = 0)
      : stream(s), batch(out[0]), heads(h) {
    const std::int64_t queries = out[1], channels = out[2], width = channels / heads;
    extents = {queries, past, static_cast<int>(width), 1 / std::sqrt(static_cast<float>(width))};
    wide = {queries * 3 * channels, width, 3 * channels};
    narrow = {queries * channels, width, channels};
  }
};

// attention_decode.cu: out for new tokens whose keys and values are in the cache. A block for every query and 128 of
// its keys, so that many blocks share a long past.
void decode_attention(const AttentionCall& call, const Tensor& out, const float* q, const float* keys,
                      const float* values, Strides cache);

// attention_choice.cu: where the device's products are bf16, by cuDNN or on tensor cores. False, with nothing done,
// where products are f32 or neither computes heads of this width, and the second where `past` lives. The first for past
// = 0; the second with keys and values of (B, H, capacity, D) that hold the new ones.
bool attention_in_bf16(CudaKernels& k, const AttentionCall& call, const Tensor& out, const Tensor& lse,
                       const Tensor& qkv);
bool attention_in_bf16(CudaKernels& k, const AttentionCall& call, const Tensor& out, const Tensor& keys,
                       const Tensor& values, const Tensor& qkv);
bool attention_backward_in_bf16(CudaKernels& k, const AttentionCall& call, const Into& dqkv, const Tensor& dout,
                                const Tensor& qkv, const Tensor& out, const Tensor& lse);

// attention_backward.cu: (B, H, T), the sum of dout * out over the columns of a head.
Tensor attention_delta(const AttentionCall& call, const Tensor& dout, const Tensor& out);

inline void check_width(int width) { check(width <= 256, "cuda: attention heads of {} columns are beyond 256", width); }

// The most columns of a head that a thread may own decides how many registers it needs: run() is called with a type of
// that constant.
template <int n>
struct Owned {
  static constexpr int kColumns = n;
};
template <class F>
void for_width(int width, F&& run) {
  check_width(width);
  if (width <= 16 * kTeam)
    run(Owned<16>{});
  else if (width <= 32 * kTeam)
    run(Owned<32>{});
  else
    run(Owned<64>{});
}

// A tile's rows are one element longer than a head, so that a warp's reads down a column meet different banks.
constexpr std::size_t tile_floats(int width) {
  return static_cast<std::size_t>(kTile) * static_cast<std::size_t>(width + 1);
}
inline constexpr std::size_t kScoreFloats = std::size_t{kTile} * (kTile + 1);

inline void check_shared(std::size_t bytes, int width) {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "asking for a block's shared memory");
  check(bytes <= static_cast<std::size_t>(most),
        "cuda: attention heads of {} columns need {} bytes of a block's shared memory, this device has {}", width,
        bytes, most);
}

// Asks for more shared memory than every kernel may have; for heads of `width` columns.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes, int width) {
  if (bytes <= 48 * 1024) return;
  check_shared(bytes, width);
  cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "shared memory for attention");
}

// Rows first..first+31 of a head, 0 from row `end` on.
__device__ inline void load_tile(float* tile, const float* from, std::int64_t stride, std::int64_t first,
                                 std::int64_t end, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * width; i += kAttentionBlock) {
    const int r = i / width, c = i % width;
    tile[r * (width + 1) + c] = first + r < end ? from[(first + r) * stride + c] : 0.0f;
  }
}

__device__ inline float dot(const float* a, const float* b, int width) {
  float sum = 0;
  for (int c = 0; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

// Over the four threads of a row.
__device__ inline float team_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float team_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace grt::cuda
