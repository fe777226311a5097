// Causal attention as graphs of cuDNN operations, which it knows and computes as one: queries, keys and values in bf16
// side by side in qkv (B, T, 3C), scores and statistics in f32.
#pragma once

#include "cuda/cudnn/graph.h"
#include "cuda/sdpa.h"

namespace grt::cudnn {

// What run() is given addresses of. Of qkv and dqkv the three parts are tensors of their own.
enum AttentionUid : Uid { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kDelta, kScale, kMinusInfinity, kOne };

// out and lse from q, k, v.
Graph attention_graph(const cuda::SdpaShape& shape);

// dq, dk, dv from q, k, v, out, lse and dout. delta (B, H, T), f32, is scratch. Without atomic additions.
Graph attention_backward_graph(const cuda::SdpaShape& shape);

}  // namespace grt::cudnn
