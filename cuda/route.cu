// Top-k selection and the rows that it names. Rows of a sequence are named once each, so they are moved independently.
#include "cuda/device.cuh"

namespace grt::cuda {
namespace {

// Does element i of s come before element j? NaNs last, of equals the first.
__device__ bool before(const float* s, std::int64_t i, std::int64_t j) {
  const bool i_is = s[i] == s[i], j_is = s[j] == s[j];
  if (i_is != j_is) return i_is;
  return i_is && s[i] != s[j] ? s[i] > s[j] : i < j;
}

// A thread for each element counts those before it.
__global__ void choose_kernel(float* chosen, const float* scores, std::int64_t n, std::int64_t time, std::int64_t k) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const float* const s = scores + i / time * time;
  std::int64_t rank = 0;
  for (std::int64_t j = 0; j < time; ++j) rank += before(s, j, i % time);
  chosen[i] = rank < k ? 1.0f : 0.0f;
}

__global__ void index_kernel(std::int32_t* index, const float* chosen, std::int64_t n, std::int64_t time,
                             std::int64_t k) {
  const std::int64_t i = global_index();
  if (i >= n || chosen[i] == 0) return;
  const std::int64_t sequence = i / time;
  std::int64_t at = sequence * k;
  for (std::int64_t j = sequence * time; j < i; ++j) at += chosen[j] != 0;
  index[at] = static_cast<std::int32_t>(i % time);
}

// Row `named` of the k of all sequences, as a row of the T of all.
__device__ std::int64_t row_of(const std::int32_t* index, std::int64_t named, std::int64_t k, std::int64_t time) {
  return named / k * time + index[named];
}

// Rows of `width` words; a thread for each word.
template <class Word>
__global__ void gather_rows_kernel(Word* y, const Word* x, const std::int32_t* index, std::int64_t n, std::int64_t k,
                                   std::int64_t time, std::int64_t width) {
  const std::int64_t i = global_index();
  if (i < n) y[i] = x[row_of(index, i / width, k, time) * width + i % width];
}

__global__ void gather_rows_backward_kernel(float* dx, const float* dy, const std::int32_t* index, std::int64_t n,
                                            std::int64_t k, std::int64_t time, std::int64_t width) {
  const std::int64_t i = global_index();
  if (i < n) dx[row_of(index, i / width, k, time) * width + i % width] += dy[i];
}

__global__ void gated_scatter_kernel(float* y, const std::int32_t* index, const float* z, const float* o,
                                     std::int64_t n, std::int64_t k, std::int64_t time, std::int64_t width,
                                     float scale) {
  const std::int64_t i = global_index();
  if (i >= n) return;
  const std::int64_t named = i / width;
  y[row_of(index, named, k, time) * width + i % width] += scale * sigmoid(z[named]).value * o[i];
}

// With s = sigmoid(z), g = scale s:  do = g dy[index],  dz = g (1 - s) <dy[index], o>. A warp for each row.
__global__ void gated_scatter_backward_kernel(float* dz, bool add_z, float* d_o, bool add_o, const float* dy,
                                              const std::int32_t* index, const float* z, const float* o,
                                              std::int64_t rows, std::int64_t k, std::int64_t time, std::int64_t width,
                                              float scale) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const Sigmoid s = sigmoid(z[row]);
  const float g = scale * s.value;
  const float* const d = dy + row_of(index, row, k, time) * width;
  float along = 0;
  for (std::int64_t c = lane_index(); c < width; c += kWarp) {
    along += d[c] * o[row * width + c];
    if (d_o) put(d_o + row * width + c, add_o, g * d[c]);
  }
  along = warp_sum(along);
  if (dz && lane_index() == 0) put(dz + row, add_z, g * s.rest * along);
}

template <class Word>
void gather(cudaStream_t stream, const Tensor& y, const Tensor& x, const Tensor& index) {
  launch(stream, "gather_rows", gather_rows_kernel<Word>, blocks_of(y.numel(), kBlock), kBlock, 0, y.data<Word>(),
         x.data<Word>(), index.data<std::int32_t>(), y.numel(), index.dim(1), x.dim(1), x.shape().last());
}

}  // namespace

void CudaKernels::top_k(const Tensor& index, const Tensor& chosen, const Tensor& scores) {
  const std::int64_t n = scores.numel(), time = scores.dim(1), k = index.dim(1);
  launch(stream, "top_k", choose_kernel, blocks_of(n, kBlock), kBlock, 0, f32(chosen), f32(scores), n, time, k);
  launch(stream, "top_k", index_kernel, blocks_of(n, kBlock), kBlock, 0, index.data<std::int32_t>(), f32(chosen), n,
         time, k);
}

void CudaKernels::gather_rows(const Tensor& y, const Tensor& x, const Tensor& index) {
  switch (size_of(x.dtype())) {
    case 2:
      return gather<std::uint16_t>(stream, y, x, index);
    case 4:
      return gather<std::uint32_t>(stream, y, x, index);
    default:
      return gather<std::uint64_t>(stream, y, x, index);
  }
}

void CudaKernels::gather_rows_backward(const Into& dx, const Tensor& dy, const Tensor& index) {
  if (!dx) return;
  launch(stream, "gather_rows_backward", gather_rows_backward_kernel, blocks_of(dy.numel(), kBlock), kBlock, 0,
         f32(dx.to), f32(dy), index.data<std::int32_t>(), dy.numel(), index.dim(1), dx.to.dim(1), dy.shape().last());
}

void CudaKernels::gated_scatter(const Tensor& y, const Tensor& h, const Tensor& index, const Tensor& z, const Tensor& o,
                                float scale) {
  copy(Into{y}, h);
  launch(stream, "gated_scatter", gated_scatter_kernel, blocks_of(o.numel(), kBlock), kBlock, 0, f32(y),
         index.data<std::int32_t>(), f32(z), f32(o), o.numel(), index.dim(1), h.dim(1), h.shape().last(), scale);
}

void CudaKernels::gated_scatter_backward(const Into& dz, const Into& d_o, const Tensor& dy, const Tensor& index,
                                         const Tensor& z, const Tensor& o, float scale) {
  if (!dz && !d_o) return;
  const std::int64_t rows = index.numel();
  launch(stream, "gated_scatter_backward", gated_scatter_backward_kernel, blocks_of(rows, kRowsPerBlock),
         kRowsPerBlock * kWarp, 0, f32(dz.to), dz.add, f32(d_o.to), d_o.add, f32(dy), index.data<std::int32_t>(),
         f32(z), f32(o), rows, index.dim(1), dy.dim(1), dy.shape().last(), scale);
}

}  // namespace grt::cuda
