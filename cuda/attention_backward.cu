// The gradient of causal attention, without a sum over blocks: one kernel gives dq, a block for 32 queries; another dk
// and dv, a block for 32 keys. Both compute the scores again.
#include "cuda/attention.cuh"

namespace grt::cuda {
namespace {

// delta (B, H, T) = sum of dout * out over the columns of a head. A warp for each row of (B, T, H).
__global__ void delta_kernel(float* delta, const float* dout, const float* out, std::int64_t rows, std::int64_t time,
                             std::int64_t heads, int width) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  float sum = 0;
  for (int c = lane_index(); c < width; c += kWarp) sum += dout[row * width + c] * out[row * width + c];
  sum = warp_sum(sum);
  const std::int64_t h = row % heads, t = row / heads % time, b = row / heads / time;
  if (lane_index() == 0) delta[(b * heads + h) * time + t] = sum;
}

// With P = exp(scale q k^T - lse):  dS = scale P (dout v^T - delta),  dq = dS k.
template <class Own>
__global__ void __launch_bounds__(kAttentionBlock)
    query_gradient_kernel(float* dq, bool add, const float* q, const float* k, const float* v, Strides wide,
                          const float* dout, Strides narrow, const float* lse, const float* delta, Extents e) {
  const int width = e.width, stride = width + 1, r = static_cast<int>(threadIdx.x) / kTeam,
            part = static_cast<int>(threadIdx.x) % kTeam;
  const std::size_t tile = tile_floats(width);
  float *const queries = dynamic_shared(), *const douts = queries + tile, *const keys = douts + tile,
               *const values = keys + tile, *const ds = values + tile + r * (kTile + 1);
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{gridDim.x - 1 - blockIdx.x} * kTile;
  const std::int64_t position = first + r, end = std::min(first + kTile, e.queries);
  load_tile(queries, q + wide.at(b, h), wide.row, first, end, width);
  load_tile(douts, dout + narrow.at(b, h), narrow.row, first, end, width);
  const std::int64_t row = (b * gridDim.y + h) * e.queries + std::min(position, e.queries - 1);
  const float row_lse = lse[row], row_delta = delta[row];
  float sum[Own::kColumns] = {};
  for (std::int64_t begin = 0; begin < end; begin += kTile) {
    __syncthreads();
    load_tile(keys, k + wide.at(b, h), wide.row, begin, end, width);
    load_tile(values, v + wide.at(b, h), wide.row, begin, end, width);
    __syncthreads();
    for (int j = part; j < kTile; j += kTeam) {
      const float p = expf(e.scale * dot(queries + r * stride, keys + j * stride, width) - row_lse);
      const float dp = dot(douts + r * stride, values + j * stride, width);
      ds[j] = begin + j <= position ? e.scale * p * (dp - row_delta) : 0.0f;
    }
    __syncwarp();
    for (int i = 0; i < Own::kColumns; ++i) {
      const int c = part + kTeam * i;
      if (c >= width) break;
      for (int j = 0; j < kTile; ++j) sum[i] += ds[j] * keys[j * stride + c];
    }
  }
  if (position >= e.queries) return;
  float* const to = dq + wide.at(b, h) + position * wide.row;
  for (int i = 0; i < Own::kColumns; ++i)
    if (part + kTeam * i < width) put(to + part + kTeam * i, add, sum[i]);
}

// dk = dS^T q,  dv = P^T dout.
template <class Own>
__global__ void __launch_bounds__(kAttentionBlock)
    key_gradient_kernel(float* dk, float* dv, bool add, const float* q, const float* k, const float* v, Strides wide,
                        const float* dout, Strides narrow, const float* lse, const float* delta, Extents e) {
  const int width = e.width, stride = width + 1, r = static_cast<int>(threadIdx.x) / kTeam,
            part = static_cast<int>(threadIdx.x) % kTeam;
  const std::size_t tile = tile_floats(width);
  float *const queries = dynamic_shared(), *const douts = queries + tile, *const keys = douts + tile,
               *const values = keys + tile, *const p = values + tile + r * (kTile + 1), *const ds = p + kScoreFloats;
  const std::int64_t b = blockIdx.z, h = blockIdx.y, first = std::int64_t{blockIdx.x} * kTile, position = first + r;
  const std::int64_t rows = (b * gridDim.y + h) * e.queries;
  load_tile(keys, k + wide.at(b, h), wide.row, first, e.queries, width);
  load_tile(values, v + wide.at(b, h), wide.row, first, e.queries, width);
  float key_sum[Own::kColumns] = {}, value_sum[Own::kColumns] = {};
  for (std::int64_t begin = first; begin < e.queries; begin += kTile) {
    __syncthreads();
    load_tile(queries, q + wide.at(b, h), wide.row, begin, e.queries, width);
    load_tile(douts, dout + narrow.at(b, h), narrow.row, begin, e.queries, width);
    __syncthreads();
    for (int j = part; j < kTile; j += kTeam) {
      const bool seen = position <= begin + j && begin + j < e.queries;
      p[j] = ds[j] = 0;
      if (!seen) continue;
      p[j] = expf(e.scale * dot(queries + j * stride, keys + r * stride, width) - lse[rows + begin + j]);
      const float dp = dot(douts + j * stride, values + r * stride, width);
      ds[j] = e.scale * p[j] * (dp - delta[rows + begin + j]);
    }
    __syncwarp();
    for (int i = 0; i < Own::kColumns; ++i) {
      const int c = part + kTeam * i;
      if (c >= width) break;
      for (int j = 0; j < kTile; ++j) {
        key_sum[i] += ds[j] * queries[j * stride + c];
        value_sum[i] += p[j] * douts[j * stride + c];
      }
    }
  }
  if (position >= e.queries) return;
  const std::int64_t to = wide.at(b, h) + position * wide.row;
  for (int i = 0; i < Own::kColumns; ++i) {
    const int c = part + kTeam * i;
    if (c >= width) break;
    put(dk + to + c, add, key_sum[i]);
    put(dv + to + c, add, value_sum[i]);
  }
}

}  // namespace

Tensor attention_delta(const AttentionCall& call, const Tensor& dout, const Tensor& out) {
  const Extents& e = call.extents;
  const Tensor delta = Tensor::empty({call.batch, call.heads, e.queries}, DType::f32, out.device());
  const std::int64_t rows = delta.numel();
  launch(call.stream, "attention_backward", delta_kernel, blocks_of(rows, kRowsPerBlock), kRowsPerBlock * kWarp, 0,
         f32(delta), f32(dout), f32(out), rows, e.queries, call.heads, e.width);
  return delta;
}

void CudaKernels::attention_backward(const Into& dqkv, const Tensor& dout, const Tensor& qkv, const Tensor& out,
                                     const Tensor& lse, int heads) {
  if (!dqkv) return;
  const AttentionCall call(stream, out.shape(), heads);
  const Extents& e = call.extents;
  if (attention_backward_in_bf16(*this, call, dqkv, dout, qkv, out, lse)) return;
  const Tensor delta = attention_delta(call, dout, out);
  const std::int64_t channels = out.dim(2);
  const float* const q = f32(qkv);
  float* const dq = f32(dqkv.to);
  const std::size_t tiles = 4 * tile_floats(e.width);
  const dim3 grid = blocks_of(e.queries, kTile, heads, call.batch);
  for_width(e.width, [&]<class Own>(Own) {
    const std::size_t bytes = (tiles + kScoreFloats) * sizeof(float), more = (tiles + 2 * kScoreFloats) * sizeof(float);
    allow_shared(query_gradient_kernel<Own>, bytes, e.width);
    allow_shared(key_gradient_kernel<Own>, more, e.width);
    launch(stream, "attention_backward", query_gradient_kernel<Own>, grid, kAttentionBlock, bytes, dq, dqkv.add, q,
           q + channels, q + 2 * channels, call.wide, f32(dout), call.narrow, f32(lse), f32(delta), e);
    launch(stream, "attention_backward", key_gradient_kernel<Own>, grid, kAttentionBlock, more, dq + channels,
           dq + 2 * channels, dqkv.add, q, q + channels, q + 2 * channels, call.wide, f32(dout), call.narrow, f32(lse),
           f32(delta), e);
  });
}

}  // namespace grt::cuda
