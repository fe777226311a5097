// Attention where products are bf16: tensors are rounded, and computed with by cuDNN where it can, else by the kernels
// of attention_bf16*.cu.
#include <array>
#include <optional>

#include "cuda/attention_bf16.cuh"

namespace grt::cuda {
namespace {

__global__ void widen_kernel(float* y, bool add, const Bf16* x, std::int64_t n) {
  const std::int64_t i = global_index();
  if (i < n) put(y + i, add, __bfloat162float(x[i]));
}

// A copy in bf16 of the first `run` elements, a multiple of 8, of each matrix of the last two extents: (matrices, run).
Tensor rounded(CudaKernels& k, const Tensor& x, std::int64_t run) {
  const std::int64_t stride = x.dim(-2) * x.dim(-1);
  Tensor y;
  k.round(y, {f32(x), DType::f32, x.numel() / stride, run, stride, false}, x.device());
  return y;
}
Tensor rounded(CudaKernels& k, const Tensor& x) { return rounded(k, x, x.dim(-2) * x.dim(-1)); }

void widen(cudaStream_t stream, const Into& y, const Tensor& x) {
  launch(stream, "widening from bf16", widen_kernel, blocks_of(x.numel(), kBlock), kBlock, 0, f32(y.to), y.add,
         x.data<Bf16>(), x.numel());
}

Tensor scratch_of(std::int64_t bytes, Device& device) {
  return Tensor::empty({ceil_div(bytes, 4)}, DType::f32, device);
}

// Who computes a pass: cuDNN, or where `sdpa` is null the kernels of attention_bf16*.cu.
struct Choice {
  Sdpa* sdpa;
  std::int64_t scratch;
  SdpaShape shape;
};

// Of attention in bf16 relative to the same in f32, a vector of all results each: bf16 gives some 0.005, a graph that
// computes something else gives 1.
constexpr double kMostDifference = 0.03;

double norm_of(CudaKernels& k, const Tensor& x) {
  const Tensor squares = Tensor::empty({1}, DType::f64, x.device());
  k.sum_squares(squares, x);
  double sum = 0;
  x.device().copy(&sum, squares.raw(), sizeof sum);
  x.device().sync();
  return std::sqrt(sum);
}

// While it lives the library is taken for verified at a width, or the comparison would begin another; and afterwards,
// if it has agreed. The type of products is then what it was.
struct Comparison {
  CudaKernels& k;
  std::int64_t width;
  DType products = k.products;
  bool agreed = false;

  Comparison(CudaKernels& kernels, std::int64_t w) : k(kernels), width(w) { k.sdpa.verified_widths.insert(width); }
  ~Comparison() {
    k.products = products;
    if (!agreed) k.sdpa.verified_widths.erase(width);
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;
};

// The library's results of a small problem against those of the kernels in f32.
void compare_with_own(CudaKernels& k, Device& device, std::int64_t width) {
  Comparison comparison(k, width);
  constexpr int kHeads = 2;
  const Shape narrow{1, 80, kHeads * width}, wide{1, 80, 3 * kHeads * width};
  const Tensor qkv = Tensor::empty(wide, DType::f32, device), dout = Tensor::empty(narrow, DType::f32, device);
  k.truncated_normal(qkv, 1, {1, 0, 0}, 0);
  k.truncated_normal(dout, 1, {2, 0, 0}, 0);
  const auto attend = [&](DType products) {
    const Tensor out = Tensor::like(dout), dqkv = Tensor::like(qkv),
                 lse = Tensor::empty({1, kHeads, narrow[1]}, DType::f32, device);
    k.products = products;
    k.attention(out, lse, qkv, kHeads);
    k.attention_backward({dqkv}, dout, qkv, out, lse, kHeads);
    return std::array{out, lse, dqkv};
  };
  const auto own = attend(DType::f32), by_library = attend(DType::bf16);
  constexpr std::array kNames{"the result", "the log of the sum", "the gradient"};
  for (std::size_t i = 0; i < own.size(); ++i) {
    k.multiply({by_library[i], true}, own[i], -1);
    const double difference = norm_of(k, by_library[i]) / norm_of(k, own[i]);
    check(difference <= kMostDifference,
          "attention by cuDNN, heads of {}: {} differs from this backend's by {:.2g} of it; GRT_ATTENTION=own in the "
          "environment does without cuDNN",
          width, kNames[i], difference);
  }
  comparison.agreed = true;
}

// How a pass is computed; none, which is to say by the kernels in f32, where products are f32 or neither cuDNN nor the
// tensor cores' kernels take heads of this width.
std::optional<Choice> choose(CudaKernels& k, Pass pass, const AttentionCall& call, Device& device) {
  if (k.products != DType::bf16) return {};
  const Extents& e = call.extents;
  Choice choice{nullptr, 0, {call.batch, e.queries, call.heads, e.width}};
  if (e.past.known() == 0) choice.sdpa = k.sdpa.find(pass, choice.shape, k.stream, &choice.scratch);
  if (choice.sdpa && !k.sdpa.verified_widths.contains(e.width)) compare_with_own(k, device, e.width);
  if (!choice.sdpa && !on_tensor_cores(e.width)) return {};
  return choice;
}

}  // namespace

bool attention_in_bf16(CudaKernels& k, const AttentionCall& call, const Tensor& out, const Tensor& lse,
                       const Tensor& qkv) {
  const std::optional<Choice> choice = choose(k, Pass::forward, call, out.device());
  if (!choice) return false;
  const Tensor x = rounded(k, qkv);
  if (choice->sdpa) {
    const Tensor y = Tensor::empty(out.shape(), DType::bf16, out.device());
    choice->sdpa->forward(choice->shape, y.raw(), f32(lse), x.raw(), scratch_of(choice->scratch, out.device()).raw());
    widen(k.stream, {out}, y);
  } else {
    const Bf16 *const q = x.data<Bf16>(), *const keys = q + out.dim(2), *const values = keys + out.dim(2);
    flash_attention(call, f32(out), f32(lse), q, keys, values, call.wide);
  }
  return true;
}

bool attention_in_bf16(CudaKernels& k, const AttentionCall& call, const Tensor& out, const Tensor& keys,
                       const Tensor& values, const Tensor& qkv) {
  const Extents& e = call.extents;
  if (e.past.lives()) return false;  // how many keys there are has to be known
  if (e.past.known() == 0)           // as without a cache
    return attention_in_bf16(k, call, out, Tensor::empty({call.batch, call.heads, e.queries}, DType::f32, out.device()),
                             qkv);
  if (!choose(k, Pass::forward, call, out.device())) return false;
  const std::int64_t run = (e.past.known() + e.queries) * e.width;
  const Tensor q = rounded(k, qkv), all_keys = rounded(k, keys, run), all_values = rounded(k, values, run);
  flash_attention(call, f32(out), nullptr, q.data<Bf16>(), all_keys.data<Bf16>(), all_values.data<Bf16>(),
                  {call.heads * run, run, e.width});
  return true;
}

bool attention_backward_in_bf16(CudaKernels& k, const AttentionCall& call, const Into& dqkv, const Tensor& dout,
                                const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  const std::optional<Choice> choice = choose(k, Pass::backward, call, out.device());
  if (!choice) return false;
  const Tensor x = rounded(k, qkv), dy = rounded(k, dout);
  if (choice->sdpa) {
    const Tensor y = rounded(k, out), dx = Tensor::empty(qkv.shape(), DType::bf16, out.device());
    choice->sdpa->backward(choice->shape, dx.raw(), dy.raw(), x.raw(), y.raw(), f32(lse),
                           scratch_of(choice->scratch, out.device()).raw());
    widen(k.stream, dqkv, dx);
  } else {
    flash_attention_backward(call, dqkv, dy.data<Bf16>(), x.data<Bf16>(), f32(lse),
                             f32(attention_delta(call, dout, out)));
  }
  return true;
}

}  // namespace grt::cuda
