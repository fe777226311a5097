// The gradient of attention on tensor cores, without a sum over blocks: one kernel gives dq, a block for 64 queries;
// another dk and dv, a block for 64 keys. Both compute the scores again. P and dS are rounded to bf16 for their
// products; everything else is f32.
#include "cuda/attention_bf16.cuh"

namespace grt::cuda {
namespace {

// Rows of a head's gradient from a fragment of 64 rows.
template <int kWidth>
__device__ void store(float* to, bool add, std::int64_t stride, const float (&x)[kWidth / 8][4], const Fragment& at,
                      std::int64_t first, std::int64_t end) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = first + at.row + r * 8;
    if (row >= end) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) put(to + row * stride + n * 8 + at.column + i, add, x[n][2 * r + i]);
  }
}

// With P = exp(scale q k^T - lse):  dS = scale P (dout v^T - delta),  dq = dS k.
template <int kWidth>
__global__ void __launch_bounds__(kFlashBlock)
    query_gradient_kernel(float* dq, bool add, const Bf16* q, const Bf16* k, const Bf16* v, Strides wide,
                          const Bf16* dout, Strides narrow, const float* lse, const float* delta, Extents e) {
  constexpr int kKeys = kPassing<kWidth>, kRow = kTileRow<kWidth>;
  Bf16 *const queries = tiles(), *const douts = queries + kStanding * kRow, *const keys = douts + kStanding * kRow,
              *const values = keys + 2 * kKeys * kRow;
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{gridDim.x - 1 - blockIdx.x} * kStanding;
  const std::int64_t end = std::min(first + kStanding, e.queries), rows = (b * gridDim.y + h) * e.queries;
  const Fragment at;
  copy_tile<kWidth, kStanding>(queries, q + wide.at(b, h), wide.row, first, end);
  copy_tile<kWidth, kStanding>(douts, dout + narrow.at(b, h), narrow.row, first, end);
  float row_lse[2], row_delta[2], sum[kWidth / 8][4] = {};
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = rows + std::min(first + at.row + r * 8, e.queries - 1);
    row_lse[r] = kLog2e * lse[row];
    row_delta[r] = delta[row];
  }
  const auto body = [&](std::int64_t begin, const Bf16* k_tile, const Bf16* v_tile) {
    float score[kKeys / 8][4] = {}, ds[kKeys / 8][4] = {};
    multiply_transposed<kWidth, kKeys>(score, queries + at.warp_row * kRow, k_tile);
    multiply_transposed<kWidth, kKeys>(ds, douts + at.warp_row * kRow, v_tile);
    const int seen = static_cast<int>(first - begin) + at.row;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = exp2f(e.scale * kLog2e * score[n][i] - row_lse[i / 2]);
        ds[n][i] = n * 8 + at.column + i % 2 <= seen + i / 2 * 8 ? e.scale * p * (ds[n][i] - row_delta[i / 2]) : 0.0f;
      }
    multiply<kWidth, kKeys>(sum, ds, k_tile);
  };
  pass_tiles<kWidth, kKeys>({k + wide.at(b, h), wide.row, keys}, {v + wide.at(b, h), wide.row, values}, 0, end, body);
  store<kWidth>(dq + wide.at(b, h), add, wide.row, sum, at, first, e.queries);
}

// dk = dS^T q,  dv = P^T dout.
template <int kWidth>
__global__ void __launch_bounds__(kFlashBlock)
    key_gradient_kernel(float* dk, float* dv, bool add, const Bf16* q, const Bf16* k, const Bf16* v, Strides wide,
                        const Bf16* dout, Strides narrow, const float* lse, const float* delta, Extents e) {
  constexpr int kQueries = kPassing<kWidth>, kRow = kTileRow<kWidth>;
  Bf16 *const keys = tiles(), *const values = keys + kStanding * kRow, *const queries = values + kStanding * kRow,
              *const douts = queries + 2 * kQueries * kRow;
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{blockIdx.x} * kStanding;
  lse += (b * gridDim.y + h) * e.queries;
  delta += (b * gridDim.y + h) * e.queries;
  const Fragment at;
  copy_tile<kWidth, kStanding>(keys, k + wide.at(b, h), wide.row, first, e.queries);
  copy_tile<kWidth, kStanding>(values, v + wide.at(b, h), wide.row, first, e.queries);
  float key_sum[kWidth / 8][4] = {}, value_sum[kWidth / 8][4] = {};
  const auto body = [&](std::int64_t begin, const Bf16* q_tile, const Bf16* dout_tile) {
    float p[kQueries / 8][4] = {}, ds[kQueries / 8][4] = {};
    multiply_transposed<kWidth, kQueries>(p, keys + at.warp_row * kRow, q_tile);
    multiply_transposed<kWidth, kQueries>(ds, values + at.warp_row * kRow, dout_tile);
    const int from = static_cast<int>(first - begin) + at.row, left = static_cast<int>(e.queries - begin);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = n * 8 + at.column + i % 2;
        const bool seen = from <= query - i / 2 * 8 && query < left;
        p[n][i] = seen ? exp2f(kLog2e * (e.scale * p[n][i] - lse[begin + query])) : 0.0f;
        ds[n][i] = seen ? e.scale * p[n][i] * (ds[n][i] - delta[begin + query]) : 0.0f;
      }
    multiply<kWidth, kQueries>(value_sum, p, dout_tile);
    multiply<kWidth, kQueries>(key_sum, ds, q_tile);
  };
  pass_tiles<kWidth, kQueries>({q + wide.at(b, h), wide.row, queries}, {dout + narrow.at(b, h), narrow.row, douts},
                               first, e.queries, body);
  store<kWidth>(dk + wide.at(b, h), add, wide.row, key_sum, at, first, e.queries);
  store<kWidth>(dv + wide.at(b, h), add, wide.row, value_sum, at, first, e.queries);
}

}  // namespace

void flash_attention_backward(const AttentionCall& call, const Into& dqkv, const Bf16* dout, const Bf16* qkv,
                              const float* lse, const float* delta) {
  const Extents& e = call.extents;
  const std::int64_t channels = call.heads * e.width;
  const Bf16 *const k = qkv + channels, *const v = k + channels;
  float *const dq = f32(dqkv.to), *const dk = dq + channels, *const dv = dk + channels;
  const dim3 grid = blocks_of(e.queries, kStanding, call.heads, call.batch);
  for_tile_width(e.width, [&]<int kWidth>(Width<kWidth>) {
    const std::size_t bytes = (2 * kStanding + 4 * kPassing<kWidth>)*kTileRow<kWidth> * sizeof(Bf16);
    allow_shared(query_gradient_kernel<kWidth>, bytes, kWidth);
    launch(call.stream, "attention_backward", query_gradient_kernel<kWidth>, grid, kFlashBlock, bytes, dq, dqkv.add,
           qkv, k, v, call.wide, dout, call.narrow, lse, delta, e);
    allow_shared(key_gradient_kernel<kWidth>, bytes, kWidth);
    launch(call.stream, "attention_backward", key_gradient_kernel<kWidth>, grid, kFlashBlock, bytes, dk, dv, dqkv.add,
           qkv, k, v, call.wide, dout, call.narrow, lse, delta, e);
  });
}

}  // namespace grt::cuda
