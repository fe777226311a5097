// The CUDA backend's fulfilment of the kernel contract (ops/kernels.h), one .cu file for each family; it computes in
// f32, but for products of bf16 factors. Plain C++: what only nvcc or the emulator understand stands in
// cuda/device.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/blas.h"
#include "cuda/held.h"
#include "cuda/sdpa.h"
#include "ops/kernels.h"

namespace grt::cuda {

// Throws Error for a call that failed. `what`: the call, as a person would say it.
void cuda_check(cudaError_t e, const char* what);

struct CudaKernels final : Kernels {
  CudaKernels(cudaStream_t s, DType p) : stream(s), products(p) {}

  // elementwise.cu
  void add(const Into&, const Tensor&, const Tensor&) override;
  void copy(const Into&, const Tensor&) override;
  void scale(const Into&, const Tensor&, const Tensor&) override;
  void lerp(const Into&, const Tensor&, const Tensor&, float) override;
  void multiply(const Into&, const Tensor&, float) override;
  void scale_rows(const Into&, const Tensor&, const Tensor&) override;
  void silu(const Tensor&, const Tensor&) override;
  void silu_backward(const Into&, const Tensor&, const Tensor&) override;
  void gelu(const Tensor&, const Tensor&, Gelu) override;
  void gelu_backward(const Into&, const Tensor&, const Tensor&, Gelu) override;
  void put_columns(const Tensor&, std::int64_t, const Tensor&) override;
  void get_columns(const Into&, const Tensor&, std::int64_t) override;
  // noise.cu
  void add_noise(const Tensor&, const Tensor&, float, NoiseKey) override;
  void truncated_normal(const Tensor&, float, NoiseKey, Scalar<std::int64_t>) override;
  // linear.cpp (blas.h)
  void matmul(const Into&, Columns, const Factor&, const Factor&, const Tensor&) override;
  void matmul_plus(const Tensor&, const Tensor&, const Factor&, const Factor&) override;
  void linear_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Factor&) override;
  void hold(const Tensor& weights) override { copies.hold(weights); }
  void let_go() override { copies.let_go(); }
  Keeps keeps() const override { return products == DType::bf16 ? Keeps::rounded : Keeps::nothing; }
  // packed.cu
  void pack(const Tensor&, const Tensor&) override;
  // reduce.cu
  void sum_rows(const Into&, const Tensor&) override;
  void sum(const Into&, const Tensor&, double) override;
  void sum_squares(const Tensor&, const Tensor&) override;
  std::int64_t count_not_finite(const Tensor&) override;
  // norm.cu
  void layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                 float) override;
  void layernorm_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&) override;
  void add_layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, float) override;
  // embedding.cu
  void embedding(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t>) override;
  void embedding_backward(const Into&, const Into&, const Tensor&, const Tensor&, std::int64_t) override;
  // attention*.cu
  void attention(const Tensor&, const Tensor&, const Tensor&, int) override;
  void attention_backward(const Into&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int) override;
  void attention_cached(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t>, int) override;
  // loss.cu
  void cross_entropy(const Tensor&, const Into&, const Tensor&, const Tensor&, std::int64_t, double) override;
  void distillation(const Tensor&, const Into&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                    const Distillation&, double) override;
  void bce_with_logits(const Tensor&, const Tensor&, const Tensor&) override;
  void bce_with_logits_backward(const Into&, const Tensor&, const Tensor&, const Tensor&, double) override;
  // route.cu
  void top_k(const Tensor&, const Tensor&, const Tensor&) override;
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override;
  void gather_rows_backward(const Into&, const Tensor&, const Tensor&) override;
  void gated_scatter(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float) override;
  void gated_scatter_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              float) override;
  // gate.cu
  void gate_mix(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&) override;
  void gate_mix_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const GateNoise&) override;
  void gate_step(const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&,
                 const StateNoise&, float) override;
  void gate_step_backward(const Into&, const Into&, const Into&, const Into&, const NextStateGradients&,
                          const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const GateNoise&) override;
  // exit.cu
  void exit_distribution(const Tensor&, const Tensor&) override;
  void exit_loss(const Tensor&, const Tensor&, const Tensor&, double) override;
  void exit_loss_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, double) override;
  void exit_gate_loss(const Tensor&, const Tensor&, const Tensor&) override;
  void exit_gate_loss_backward(const Into&, const Tensor&, const Tensor&, const Tensor&) override;
  // optim.cu
  void clip_scale(const Tensor&, const Tensor&, double) override;
  void adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AdamW&) override;

  // round.cu: to (x.rows, rounded_stride(x.columns)) = x in bf16; its memory is taken if it has none. x is not
  // transposed.
  void round(Tensor& to, const Matrix& x, Device& device);

  cudaStream_t stream;
  DType products;  // of f32 tensors: f32 or bf16 (core/device.h, open_cpu)
  Blas blas;
  HeldCopies copies;
  SdpaChoice sdpa;

 private:
  // A factor in the type of products, with the memory of its copy if it is one.
  struct Operand {
    Matrix matrix;
    Tensor copy;
  };
  Operand operand(const Factor& factor);
  void gemm(const Into& y, Columns columns, const Matrix& a, const Matrix& b, const Tensor& bias);
  void packed_matmul(const Into& y, Columns columns, const Tensor& x, const Factor& w, const Tensor& bias);
};

// The elements of an f32 tensor, or null without one.
inline float* f32(const Tensor& t) {
  check(t.dtype() == DType::f32, "the CUDA backend computes in f32, not {}", name_of(t.dtype()));
  return t.data<float>();
}

}  // namespace grt::cuda
