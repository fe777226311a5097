// The GPT-2 parts every model shares: embeddings, the final norm and the tied head.
#pragma once

#include "models/config.h"
#include "nn/block.h"

namespace grt {

struct Backbone {
  BackboneConfig config;
  const Param *wte, *wpe;
  LayerNorm ln_f;

  Backbone(const Scope& s, const BackboneConfig& c)
      : config(c),
        wte((s / "wte")("weight", {c.padded_vocab_size, c.d_model}, {}, c.vocab_size)),
        wpe((s / "wpe")("weight", {c.context_length, c.d_model}, {})),
        ln_f(s / "ln_f", c.d_model, c.bias) {}

  // wte[token] + wpe[position], (B, T) -> (B, T, d).
  Var embed(const Tensor& tokens, const KvCache* cache) const;

  // `applications`: L, the block applications at full depth, which the projections' initial values depend on.
  BlockConfig block(int applications) const;
};

// FLOPs of one block, per token, by the two ways of counting in models/model.h.
double block_flops_paper(const BackboneConfig& c, std::int64_t context);
double block_flops_executed(const BackboneConfig& c, std::int64_t context);

}  // namespace grt
