// Causal attention of a few new tokens over a long cache: a block for each piece of a query's keys, then a warp for
// each query, which joins its pieces. Pieces begin at multiples of kPiece: a token's result depends on its own past
// alone, not on how many tokens or sequences come with it. Source of the split: Dao et al. 2023, "Flash-Decoding for
// long-context inference".
#include "cuda/attention.cuh"

namespace grt::cuda {
namespace {

constexpr int kPiece = 128, kPieceBlock = kPiece, kPieceWarps = kPieceBlock / kWarp, kMostColumns = 256;
constexpr int kLanesPerKey = 8, kKeysPerWarp = kWarp / kLanesPerKey;

// What a query has of a piece: sum of exp(score - top) v in `width` columns, then top, then sum of exp(score - top).
constexpr std::int64_t part_floats(int width) { return width + 2; }

__device__ inline float product(float a, float b) { return a * b; }
__device__ inline float product(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// scores[j] = query k_j for the piece's first `count` keys; eight lanes to a key, which read V = float or float4.
template <class V>
__device__ void piece_scores(float* scores, const float* query, const float* keys, std::int64_t stride, int count,
                             int width) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, part = lane_index() % kLanesPerKey;
  const auto* const q = reinterpret_cast<const V*>(query);
  for (int first = warp * kKeysPerWarp; first < count; first += kPieceWarps * kKeysPerWarp) {
    const int j = first + lane_index() / kLanesPerKey;
    const auto* const k = reinterpret_cast<const V*>(keys + j * stride);
    float sum = 0;
    for (int c = part; j < count && c < width / static_cast<int>(sizeof(V) / sizeof(float)); c += kLanesPerKey)
      sum += product(q[c], k[c]);
    for (int lanes = 1; lanes < kLanesPerKey; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    if (part == 0 && j < count) scores[j] = sum;
  }
}

// sums[warp][c] = sum of weights[j] v_j[c] over every fourth key.
__device__ inline void piece_sums(float* sums, const float* weights, const float* values, std::int64_t stride,
                                  int count, int width) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float sum[kMostColumns / kWarp] = {};
  for (int j = warp; j < count; j += kPieceWarps)
    for (int i = 0; i < kMostColumns / kWarp; ++i) {
      const int c = lane_index() + i * kWarp;
      if (c >= width) break;
      sum[i] += weights[j] * values[j * stride + c];
    }
  for (int i = 0; i < kMostColumns / kWarp; ++i)
    if (lane_index() + i * kWarp < width) sums[warp * kMostColumns + lane_index() + i * kWarp] = sum[i];
}

// blockIdx: query of a sequence, head, piece. A query whose keys are one piece for all is done: parts is null.
template <class V>
__global__ void __launch_bounds__(kPieceBlock)
    piece_kernel(float* out, Strides to, float* parts, const float* q, Strides from, const float* k, const float* v,
                 Strides cache, Extents e) {
  float *const query = reinterpret_cast<float*>(shared<float4, kMostColumns / 4, 1>()),
               *const scores = shared<float, kPiece, 2>(), *const weights = shared<float, kPiece, 3>(),
               *const sums = shared<float, kPieceWarps * kMostColumns, 4>();
  const int width = e.width, thread = static_cast<int>(threadIdx.x);
  const std::int64_t h = blockIdx.y, b = blockIdx.x / e.queries, t = blockIdx.x % e.queries;
  const std::int64_t begin = std::int64_t{blockIdx.z} * kPiece, seen = e.past.get() + t + 1;
  if (begin >= seen) return;  // the whole block
  const int count = static_cast<int>(std::min<std::int64_t>(kPiece, seen - begin));
  for (int c = thread; c < width; c += kPieceBlock) query[c] = e.scale * q[from.at(b, h) + t * from.row + c];
  __syncthreads();
  const std::int64_t first = cache.at(b, h) + begin * cache.row;
  piece_scores<V>(scores, query, k + first, cache.row, count, width);
  __syncthreads();
  float top = -INFINITY, total = 0;
  for (int j = lane_index(); j < count; j += kWarp) top = fmaxf(top, scores[j]);
  top = warp_max(top);
  if (thread < count) weights[thread] = expf(scores[thread] - top);
  __syncthreads();
  for (int j = lane_index(); j < count; j += kWarp) total += weights[j];
  total = warp_sum(total);
  piece_sums(sums, weights, v + first, cache.row, count, width);
  __syncthreads();
  const std::int64_t place = (blockIdx.x * gridDim.y + h) * gridDim.z + blockIdx.z;
  for (int c = thread; c < width; c += kPieceBlock) {
    float sum = 0;
    for (int w = 0; w < kPieceWarps; ++w) sum += sums[w * kMostColumns + c];
    if (parts)
      parts[place * part_floats(width) + c] = sum;
    else
      out[to.at(b, h) + t * to.row + c] = sum / total;
  }
  if (parts && thread == 0) {
    parts[place * part_floats(width) + width] = top;
    parts[place * part_floats(width) + width + 1] = total;
  }
}

// A warp for each row of (B, n, H), which goes through its pieces in their order.
__global__ void join_kernel(float* out, const float* parts, std::int64_t rows, std::int64_t heads, std::int64_t pieces,
                            Extents e) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const int width = e.width;
  const std::int64_t own = (e.past.get() + row / heads % e.queries) / kPiece + 1, stride = part_floats(width);
  parts += row * pieces * stride;
  float top = -INFINITY, total = 0, sum[kMostColumns / kWarp] = {};
  for (std::int64_t p = lane_index(); p < own; p += kWarp) top = fmaxf(top, parts[p * stride + width]);
  top = warp_max(top);
  for (std::int64_t p = 0; p < own; ++p) {
    const float* const part = parts + p * stride;
    const float share = expf(part[width] - top);
    total += share * part[width + 1];
    for (int i = 0; i < kMostColumns / kWarp; ++i) {
      const int c = lane_index() + i * kWarp;
      if (c >= width) break;
      sum[i] += share * part[c];
    }
  }
  for (int i = 0; i < kMostColumns / kWarp; ++i)
    if (lane_index() + i * kWarp < width) out[row * width + lane_index() + i * kWarp] = sum[i] / total;
}

bool in_fours(const float* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(float4) == 0; }

}  // namespace

void decode_attention(const AttentionCall& call, const Tensor& out, const float* q, const float* keys,
                      const float* values, Strides cache) {
  const Extents& e = call.extents;
  check_width(e.width);
  const std::int64_t queries = call.batch * e.queries, capacity = cache.head / cache.row;
  // Of a past that grows from replay to replay, those of the whole cache: blocks beyond it end at once.
  const std::int64_t pieces = ceil_div(e.past.lives() ? capacity : e.past.known() + e.queries, kPiece);
  Tensor parts;
  if (pieces > 1) parts = Tensor::empty({queries, call.heads, pieces, part_floats(e.width)}, DType::f32, out.device());
  const auto run = [&](auto kernel) {
    launch(call.stream, "attention_cached", kernel, blocks_of(queries, 1, call.heads, pieces), kPieceBlock, 0, f32(out),
           call.narrow, parts.data<float>(), q, call.wide, keys, values, cache, e);
  };
  if (e.width % 4 == 0 && in_fours(keys))
    run(piece_kernel<float4>);
  else
    run(piece_kernel<float>);
  if (parts)
    launch(call.stream, "attention_cached", join_kernel, blocks_of(queries * call.heads, kRowsPerBlock),
           kRowsPerBlock * kWarp, 0, f32(out), f32(parts), queries * call.heads, call.heads, pieces, e);
}

}  // namespace grt::cuda
