// The CPU backend's fulfilment of the kernel contract (ops/kernels.h), one .cpp file for each family.
#pragma once

#include "ops/cpu/kept.h"
#include "ops/kernels.h"

namespace grt::cpu {

class CpuKernels final : public Kernels {
 public:
  // `products` of f32 tensors (matmul, attention) are computed in f32 or bf16 (format.h); all else is as stored.
  explicit CpuKernels(DType products) : products_(products) {}

  // elementwise.cpp
  void add(const Into&, const Tensor&, const Tensor&) override;
  void copy(const Into&, const Tensor&) override;
  void scale(const Into&, const Tensor&, const Tensor&) override;
  void lerp(const Into&, const Tensor&, const Tensor&, float) override;
  void multiply(const Into&, const Tensor&, float) override;
  void scale_rows(const Into&, const Tensor&, const Tensor&) override;
  void add_noise(const Tensor&, const Tensor&, float, NoiseKey) override;
  void truncated_normal(const Tensor&, float, NoiseKey, Scalar<std::int64_t>) override;
  void silu(const Tensor&, const Tensor&) override;
  void silu_backward(const Into&, const Tensor&, const Tensor&) override;
  void gelu(const Tensor&, const Tensor&, Gelu) override;
  void gelu_backward(const Into&, const Tensor&, const Tensor&, Gelu) override;
  void put_columns(const Tensor&, std::int64_t, const Tensor&) override;
  void get_columns(const Into&, const Tensor&, std::int64_t) override;
  // linear.cpp (gemm.h)
  void matmul(const Into&, Columns, const Factor&, const Factor&, const Tensor&) override;
  void hold(const Tensor& weights) override { kept_.hold(weights); }
  void let_go() override { kept_.let_go(); }
  Keeps keeps() const override { return Keeps::panels; }
  // packed.cpp
  void pack(const Tensor&, const Tensor&) override;
  // reduce.cpp
  void sum_rows(const Into&, const Tensor&) override;
  void sum(const Into&, const Tensor&, double) override;
  void sum_squares(const Tensor&, const Tensor&) override;
  std::int64_t count_not_finite(const Tensor&) override;
  // norm.cpp
  void layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                 float) override;
  void layernorm_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&) override;
  void add_layernorm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, float) override;
  // embedding.cpp
  void embedding(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t>) override;
  void embedding_backward(const Into&, const Into&, const Tensor&, const Tensor&, std::int64_t) override;
  // attention.cpp
  void attention(const Tensor&, const Tensor&, const Tensor&, int) override;
  void attention_backward(const Into&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int) override;
  void attention_cached(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Scalar<std::int64_t>, int) override;
  // loss.cpp
  void cross_entropy(const Tensor&, const Into&, const Tensor&, const Tensor&, std::int64_t, double) override;
  void distillation(const Tensor&, const Into&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                    const Distillation&, double) override;
  void bce_with_logits(const Tensor&, const Tensor&, const Tensor&) override;
  void bce_with_logits_backward(const Into&, const Tensor&, const Tensor&, const Tensor&, double) override;
  // route.cpp
  void top_k(const Tensor&, const Tensor&, const Tensor&) override;
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override;
  void gather_rows_backward(const Into&, const Tensor&, const Tensor&) override;
  void gated_scatter(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float) override;
  void gated_scatter_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              float) override;
  // gate.cpp
  void gate_mix(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&) override;
  void gate_mix_backward(const Into&, const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const GateNoise&) override;
  void gate_step(const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GateNoise&,
                 const StateNoise&, float) override;
  void gate_step_backward(const Into&, const Into&, const Into&, const Into&, const NextStateGradients&,
                          const NextState&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const GateNoise&) override;
  // exit.cpp
  void exit_distribution(const Tensor&, const Tensor&) override;
  void exit_loss(const Tensor&, const Tensor&, const Tensor&, double) override;
  void exit_loss_backward(const Into&, const Into&, const Tensor&, const Tensor&, const Tensor&, double) override;
  void exit_gate_loss(const Tensor&, const Tensor&, const Tensor&) override;
  void exit_gate_loss_backward(const Into&, const Tensor&, const Tensor&, const Tensor&) override;
  // optim.cpp
  void clip_scale(const Tensor&, const Tensor&, double) override;
  void adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AdamW&) override;

 private:
  const DType products_;
  KeptPanels kept_;
};

}  // namespace grt::cpu
