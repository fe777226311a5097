// Causal attention on tensor cores, of bf16 queries, keys and values: a block for 64 queries of a head, 16 to a warp,
// which goes through the keys in tiles and copies the next while it computes with one. Scores, softmax, sums and
// results are f32; the probabilities are rounded for their product with the values. A query's result depends on its own
// past alone. Source: Dao 2023, arXiv:2307.08691.
#include "cuda/attention_bf16.cuh"

namespace grt::cuda {
namespace {

// The next tile's part in a running softmax of base 2: `score` becomes exp2(score - top); what was summed up fades.
template <int kWidth, int kKeys>
__device__ void take_softmax(float (&score)[kKeys / 8][4], float (&sum)[kWidth / 8][4], float (&top)[2],
                             float (&total)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float best = top[r];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) best = fmaxf(best, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
    best = team_max(best);  // finite from the first tile on: key 0 is seen by all
    const float fade = exp2f(top[r] - best);
    top[r] = best;
    total[r] *= fade;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) total[r] += score[n][i] = exp2f(score[n][i] - best);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      sum[n][2 * r] *= fade;
      sum[n][2 * r + 1] *= fade;
    }
  }
}

// out = softmax(scale q k^T) v, causal; lse may be null. blockIdx: tile of queries (the longest first), head, sequence.
template <int kWidth>
__global__ void __launch_bounds__(kFlashBlock)
    flash_kernel(float* out, Strides to, float* lse, const Bf16* q, Strides from, const Bf16* k, const Bf16* v,
                 Strides cache, Extents e) {
  constexpr int kKeys = kPassing<kWidth>, kRow = kTileRow<kWidth>;
  Bf16 *const queries = tiles(), *const keys = queries + kStanding * kRow, *const values = keys + 2 * kKeys * kRow;
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{gridDim.x - 1 - blockIdx.x} * kStanding;
  const std::int64_t end = e.past.get() + std::min(first + kStanding, e.queries);
  const Fragment at;
  copy_tile<kWidth, kStanding>(queries, q + from.at(b, h), from.row, first, e.queries);
  float sum[kWidth / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
  const auto body = [&](std::int64_t begin, const Bf16* k_tile, const Bf16* v_tile) {
    float score[kKeys / 8][4] = {};
    multiply_transposed<kWidth, kKeys>(score, queries + at.warp_row * kRow, k_tile);
    const int seen =
        static_cast<int>(e.past.get() + first - begin) + at.row;  // the last of the tile's keys for this row
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        score[n][i] = n * 8 + at.column + i % 2 <= seen + i / 2 * 8 ? e.scale * kLog2e * score[n][i] : -INFINITY;
    take_softmax<kWidth, kKeys>(score, sum, top, total);
    multiply<kWidth, kKeys>(sum, score, v_tile);
  };
  pass_tiles<kWidth, kKeys>({k + cache.at(b, h), cache.row, keys}, {v + cache.at(b, h), cache.row, values}, 0, end,
                            body);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = team_sum(total[r]);
    const std::int64_t query = first + at.row + r * 8;
    if (query >= e.queries) continue;
    float* const row = out + to.at(b, h) + query * to.row + at.column;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
      *reinterpret_cast<float2*>(row + n * 8) = {sum[n][2 * r] / all, sum[n][2 * r + 1] / all};
    if (lse && at.column == 0) lse[(b * gridDim.y + h) * e.queries + query] = (top[r] + log2f(all)) / kLog2e;
  }
}

}  // namespace

void flash_attention(const AttentionCall& call, float* out, float* lse, const Bf16* q, const Bf16* k, const Bf16* v,
                     Strides cache) {
  for_tile_width(call.extents.width, [&]<int kWidth>(Width<kWidth>) {
    const std::size_t bytes = (kStanding + 4 * kPassing<kWidth>)*kTileRow<kWidth> * sizeof(Bf16);
    allow_shared(flash_kernel<kWidth>, bytes, kWidth);
    launch(call.stream, "attention", flash_kernel<kWidth>,
           blocks_of(call.extents.queries, kStanding, call.heads, call.batch), kFlashBlock, bytes, out, call.narrow,
           lse, q, call.wide, k, v, cache, call.extents);
  });
}

}  // namespace grt::cuda
