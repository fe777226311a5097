// Token and position embeddings. Backward, every sum is one thread's, in the order of the tokens.
#include "cuda/packed.cuh"

namespace grt::cuda {
namespace {

template <DType type>
__global__ void embedding_kernel(float* y, const std::int32_t* tokens, PackedRows<type> wte, const float* wpe,
                                 std::int64_t n, std::int64_t length, std::int64_t width, Scalar<std::int64_t> first) {
  const std::int64_t i = global_index(), at = i / width, c = i % width;
  if (i < n) y[i] = wte.at(tokens[at], c) + wpe[(first.get() + at % length) * width + c];
}

// A warp for each place of a token, blockIdx.x, and 32 columns, blockIdx.y. The warp of a token's first place adds up
// the gradients at all its places.
__global__ void token_gradient_kernel(float* dwte, const float* dy, const std::int32_t* tokens, std::int64_t n,
                                      std::int64_t width) {
  const std::int64_t place = blockIdx.x, c = std::int64_t{blockIdx.y} * kWarp + lane_index();
  const std::int32_t token = tokens[place];
  const auto same = [&](std::int64_t at, std::int64_t end) { return at < end && tokens[at] == token; };
  for (std::int64_t begin = 0; begin < place; begin += kWarp)
    if (__ballot_sync(kAllLanes, same(begin + lane_index(), place))) return;
  float sum = 0;
  for (std::int64_t begin = place; begin < n; begin += kWarp)
    for (unsigned found = __ballot_sync(kAllLanes, same(begin + lane_index(), n)); found; found &= found - 1)
      if (c < width) sum += dy[(begin + __ffs(static_cast<int>(found)) - 1) * width + c];
  if (c < width) dwte[token * width + c] += sum;
}

__global__ void position_gradient_kernel(float* dwpe, const float* dy, std::int64_t batch, std::int64_t length,
                                         std::int64_t width) {
  const std::int64_t i = global_index(), n = length * width;
  if (i >= n) return;
  float sum = 0;
  for (std::int64_t b = 0; b < batch; ++b) sum += dy[b * n + i];
  dwpe[i] += sum;
}

}  // namespace

void CudaKernels::embedding(const Tensor& y, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                            Scalar<std::int64_t> first) {
  const auto look_up = [&]<DType type>(const PackedRows<type>& rows) {
    launch(stream, "embedding", embedding_kernel<type>, blocks_of(y.numel(), kBlock), kBlock, 0, f32(y),
           tokens.data<std::int32_t>(), rows, f32(wpe), y.numel(), tokens.shape().last(), y.shape().last(), first);
  };
  if (!is_packed(wte.dtype())) return look_up(PackedRows<DType::packed_f32>{f32(wte), nullptr, wte.shape().last()});
  visit_packed(wte.dtype(), [&]<DType type>() { look_up(rows_of<type>(wte)); });
}

void CudaKernels::embedding_backward(const Into& dwte, const Into& dwpe, const Tensor& dy, const Tensor& tokens,
                                     std::int64_t first) {
  const std::int64_t n = tokens.numel(), length = tokens.shape().last(), width = dy.shape().last();
  if (dwte)
    launch(stream, "embedding_backward", token_gradient_kernel, blocks_of(n, 1, ceil_div(width, kWarp)), kWarp, 0,
           f32(dwte.to), f32(dy), tokens.data<std::int32_t>(), n, width);
  if (dwpe)
    launch(stream, "embedding_backward", position_gradient_kernel, blocks_of(length * width, kBlock), kBlock, 0,
           f32(dwpe.to) + first * width, f32(dy), length ? n / length : 0, length, width);
}

}  // namespace grt::cuda
