// Causal attention forward, over a sequence and over a cache. In f32: a block for 32 queries of a head, which goes
// through the keys in tiles and keeps a running softmax.
#include "cuda/attention.cuh"

namespace grt::cuda {
namespace {

// out = softmax(scale q k^T) v, causal; lse may be null. blockIdx: tile of queries (the longest first), head, sequence.
template <class Own>
__global__ void __launch_bounds__(kAttentionBlock)
    attention_kernel(float* out, Strides to, float* lse, const float* q, Strides from, const float* k, const float* v,
                     Strides cache, Extents e) {
  const int width = e.width, stride = width + 1, r = static_cast<int>(threadIdx.x) / kTeam,
            part = static_cast<int>(threadIdx.x) % kTeam;
  float *const queries = dynamic_shared(), *const keys = queries + tile_floats(width),
               *const values = keys + tile_floats(width), *const p = values + tile_floats(width) + r * (kTile + 1);
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{gridDim.x - 1 - blockIdx.x} * kTile;
  const std::int64_t past = e.past.get(), position = past + first + r, end = past + std::min(first + kTile, e.queries);
  load_tile(queries, q + from.at(b, h), from.row, first, e.queries, width);
  float sum[Own::kColumns] = {}, top = -INFINITY, total = 0;
  for (std::int64_t begin = 0; begin < end; begin += kTile) {
    __syncthreads();  // the tiles before are used up
    load_tile(keys, k + cache.at(b, h), cache.row, begin, end, width);
    load_tile(values, v + cache.at(b, h), cache.row, begin, end, width);
    __syncthreads();
    float best = -INFINITY;
    for (int j = part; j < kTile; j += kTeam) {
      p[j] = begin + j <= position ? e.scale * dot(queries + r * stride, keys + j * stride, width) : -INFINITY;
      best = fmaxf(best, p[j]);
    }
    best = fmaxf(top, team_max(best));  // finite from the first tile on: key 0 is seen by all
    const float fade = expf(top - best);
    float part_sum = 0;
    for (int j = part; j < kTile; j += kTeam) part_sum += p[j] = expf(p[j] - best);
    total = total * fade + team_sum(part_sum);
    top = best;
    __syncwarp();  // the team's p
    for (int i = 0; i < Own::kColumns; ++i) {
      const int c = part + kTeam * i;
      if (c >= width) break;
      sum[i] *= fade;
      for (int j = 0; j < kTile; ++j) sum[i] += p[j] * values[j * stride + c];
    }
  }
  if (first + r >= e.queries) return;
  float* const row = out + to.at(b, h) + (first + r) * to.row;
  for (int i = 0; i < Own::kColumns; ++i)
    if (part + kTeam * i < width) row[part + kTeam * i] = sum[i] / total;
  if (lse && part == 0) lse[(b * gridDim.y + h) * e.queries + first + r] = top + logf(total);
}

// Appends the keys and values of qkv to the cache.
__global__ void append_kernel(float* keys, float* values, const float* qkv, std::int64_t n, Strides from, Strides cache,
                              std::int64_t heads, Scalar<std::int64_t> past, std::int64_t fresh, int width) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const std::int64_t c = i % width, h = i / width % heads, t = i / width / heads % fresh, b = i / width / heads / fresh;
  const float* const k = qkv + from.at(b, h) + t * from.row + heads * width;
  const std::int64_t at = cache.at(b, h) + (past.get() + t) * cache.row + c;
  keys[at] = k[c];
  values[at] = k[heads * width + c];
}

// lse may be null.
void plain_attention(const AttentionCall& call, float* out, float* lse, const float* q, const float* k, const float* v,
                     Strides cache) {
  const Extents& e = call.extents;
  for_width(e.width, [&]<class Own>(Own) {
    const std::size_t bytes = (3 * tile_floats(e.width) + kScoreFloats) * sizeof(float);
    allow_shared(attention_kernel<Own>, bytes, e.width);
    launch(call.stream, "attention", attention_kernel<Own>, blocks_of(e.queries, kTile, call.heads, call.batch),
           kAttentionBlock, bytes, out, call.narrow, lse, q, call.wide, k, v, cache, e);
  });
}

// Up to so many new tokens each go through their keys by themselves: beyond, tiles of 32 queries read the cache less
// often.
constexpr std::int64_t kFewQueries = 16;

}  // namespace

void CudaKernels::attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, int heads) {
  const AttentionCall call(stream, out.shape(), heads);
  if (attention_in_bf16(*this, call, out, lse, qkv)) return;
  const float* const q = f32(qkv);
  plain_attention(call, f32(out), f32(lse), q, q + out.dim(2), q + 2 * out.dim(2), call.wide);
}

void CudaKernels::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                                   Scalar<std::int64_t> past, int heads) {
  const AttentionCall call(stream, out.shape(), heads, past);
  const std::int64_t width = keys.dim(3), capacity = keys.dim(2);
  const Strides cache{heads * capacity * width, capacity * width, width};
  launch(stream, "attention_cached", append_kernel, blocks_of(out.numel(), kBlock), kBlock, 0, f32(keys), f32(values),
         f32(qkv), out.numel(), call.wide, cache, heads, past, out.dim(1), static_cast<int>(width));
  if (call.extents.queries <= kFewQueries)
    decode_attention(call, out, f32(qkv), f32(keys), f32(values), cache);
  else if (!attention_in_bf16(*this, call, out, keys, values, qkv))
    plain_attention(call, f32(out), nullptr, f32(qkv), f32(keys), f32(values), cache);
}

}  // namespace grt::cuda
