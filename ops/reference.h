// What the operations compute, stated again in plain loops over f64 CPU tensors. Slow, and independent of the kernels:
// the values that any backend is held against. Shapes as in ops/ops.h.
#pragma once

#include <functional>
#include <vector>

#include "ops/kernels.h"

namespace grt::reference {

using Values = std::vector<double>;

Values each(const Tensor& x, const std::function<double(double)>& f);
Values each(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f);
double silu(double x);
double gelu(double x, Gelu kind);
Values truncated_normal(const Shape& shape, float std, const NoiseKey& key, std::int64_t first);

Values concat(const Tensor& a, const Tensor& b);
// x w[:, begin : begin + I]^T + plus, where plus is absent, one row (O), or of the result's shape.
Values linear(const Tensor& x, const Tensor& w, std::int64_t begin, const Tensor& plus);
Values layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps);
Values embedding(const Tensor& tokens, const Tensor& wte, const Tensor& wpe, std::int64_t first);
// With a cache, its first `past` positions precede; without one, past is 0.
Values attention(const Tensor& qkv, int heads, const Tensor& keys, const Tensor& values, std::int64_t past);
Values token_losses(const Tensor& z, const Tensor& w, const Tensor& targets, std::int64_t vocab);
Values distillation(const Tensor& z, const Tensor& w, const Tensor& targets, const Tensor& teacher_z,
                    const Tensor& teacher_w, std::int64_t vocab, const Distillation& rule);
Values exit_distribution(const Tensor& gates);
// sum_s p_s (losses_s + beta ln p_s) of each row.
Values exit_losses(const Tensor& gates, const Tensor& losses, double beta);
double exit_gate_loss(const Tensor& gates, const Tensor& losses);
Values bce_with_logits(const Tensor& z, const Tensor& targets);  // of each element
Values top_k(const Tensor& scores, std::int64_t k);              // the places
Values gather_rows(const Tensor& x, const Tensor& index);
Values gated_scatter(const Tensor& h, const Tensor& index, const Tensor& z, const Tensor& o, float scale);
Values gate_mix(const Tensor& z, const Tensor& h, const Tensor& o, const GateNoise& noise);

}  // namespace grt::reference
