// The makers of cases: for each operation of ops/ops.h a function that gives its case at any size, with what it must
// compute and how much work that is. `variant` says what is special about a case, or its size.
#pragma once

#include <cstdint>
#include <string>

#include "ops/cases.h"

namespace grt::cases {

OpCase scale_case(std::string variant, Shape x, float s);
OpCase silu_case(std::string variant, Shape x);
OpCase gelu_case(std::string variant, Shape x, Gelu kind);
OpCase add_noise_case(std::string variant, Shape x, float sigma);
// Of the shape and type of its input, whose values play no part.
OpCase truncated_normal_case(std::string variant, Shape s, std::int64_t first);
OpCase add_case(std::string variant, Shape s);
OpCase lerp_case(std::string variant, Shape s, float share);
OpCase concat_case(std::string variant, Shape a, std::int64_t right);
OpCase linear_case(std::string variant, Shape x, std::int64_t out, bool bias);
// x times the columns from `begin` on of w (out, columns).
OpCase linear_columns_case(std::string variant, Shape x, std::int64_t out, std::int64_t columns, std::int64_t begin,
                           bool plus);
// W [a ; b] in two halves is one product with the concatenation.
OpCase pair_case(Shape x, std::int64_t out);
OpCase layernorm_case(std::string variant, Shape x, bool bias);
// The value is a mixture of the two results, that of gate_step_case of the three.
OpCase add_layernorm_case(std::string variant, Shape x, bool bias);
OpCase embedding_case(std::string variant, Shape tokens, std::int64_t ids, std::int64_t vocab, std::int64_t positions,
                      std::int64_t width, std::int64_t first);
OpCase attention_case(std::string variant, std::int64_t batch, std::int64_t time, std::int64_t width, int heads);
OpCase cached_attention_case(std::string variant, std::int64_t batch, std::int64_t past, std::int64_t fresh,
                             std::int64_t width, int heads);
OpCase cross_entropy_case(std::string variant, Shape z, std::int64_t padded, std::int64_t vocab,
                          std::int64_t chunk_bytes);
// z (..., C) and a teacher's state of `teacher_width`; both heads have `padded` rows.
OpCase distillation_case(std::string variant, Shape z, std::int64_t teacher_width, std::int64_t padded,
                         std::int64_t vocab, Distillation rule, std::int64_t chunk_bytes = kLossChunkBytes);
OpCase token_losses_case(std::string variant, Shape z, std::int64_t padded, std::int64_t vocab,
                         std::int64_t chunk_bytes);
OpCase exit_distribution_case(std::string variant, std::int64_t rows, std::int64_t exits);
OpCase exit_loss_case(std::string variant, std::int64_t rows, std::int64_t exits, double beta);
OpCase exit_gate_loss_case(std::string variant, std::int64_t rows, std::int64_t exits);
OpCase expected_losses_case(std::string variant, std::int64_t rows, std::int64_t exits);
OpCase bce_with_logits_case(std::string variant, Shape z);
OpCase top_k_case(std::string variant, std::int64_t batch, std::int64_t time, std::int64_t k, bool ties);
// Of the rows of x (B, T, C), T / 2 of each sequence.
OpCase gather_rows_case(std::string variant, Shape x);
OpCase gated_scatter_case(std::string variant, Shape h, float scale);
OpCase gate_mix_case(std::string variant, Shape s, float tau, float sigma);
OpCase gate_step_case(std::string variant, Shape s, float gate_sigma, float state_sigma);

}  // namespace grt::cases
