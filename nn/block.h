// The GPT-2 block, pre-norm: x + attn(LN(x)), then x + mlp(LN(x)).
// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
#pragma once

#include <vector>

#include "nn/layers.h"

namespace grt {

struct BlockConfig {
  std::int64_t width;  // d
  int heads;
  bool bias;
  Gelu gelu;
  double proj_std;  // initial standard deviation of the two projections back into the residual stream
};

// The low-rank parts of a sublayer's two Linears, and of a block's four; default-constructed: none.
struct LowRankPair {
  LowRank in, proj;
};
struct LowRankBlock {
  LowRankPair attn, mlp;

  LowRankBlock() = default;
  LowRankBlock(const Scope& s, std::int64_t width, std::int64_t rank, float scale)
      : attn{{s / "attn" / "c_attn", width, 3 * width, rank, scale},
             {s / "attn" / "c_proj", width, width, rank, scale}},
        mlp{{s / "mlp" / "c_fc", width, 4 * width, rank, scale},
            {s / "mlp" / "c_proj", 4 * width, width, rank, scale}} {}
};

struct Attention {
  int heads;
  Linear c_attn, c_proj;

  Attention(const Scope& s, const BlockConfig& c)
      : heads(c.heads),
        c_attn(s / "c_attn", c.width, 3 * c.width, c.bias),
        c_proj(s / "c_proj", c.width, c.width, c.bias, {0, c.proj_std}) {}

  // x (B, T, d) -> (B, T, d). With a cache, its rows are the tokens of the runs of `cache` that are under way.
  Var operator()(const Var& x, KvCache* cache, int slot, const LowRankPair& own = {}) const {
    const Var qkv = c_attn(x, own.in);
    if (!cache) return c_proj(attention(qkv, heads), own.proj);
    const KvSlot& kept = cache->slot(slot);
    const Var mixed = attention(qkv, heads, kept.keys, kept.values, cache->runs());
    cache->appended(slot);
    return c_proj(mixed, own.proj);
  }
};

struct Mlp {
  Gelu kind;
  Linear c_fc, c_proj;

  Mlp(const Scope& s, const BlockConfig& c)
      : kind(c.gelu),
        c_fc(s / "c_fc", c.width, 4 * c.width, c.bias),
        c_proj(s / "c_proj", 4 * c.width, c.width, c.bias, {0, c.proj_std}) {}
  Var operator()(const Var& x, const LowRankPair& own = {}) const {
    return c_proj(gelu(c_fc(x, own.in), kind), own.proj);
  }
};

struct Block {
  LayerNorm ln_1;
  Attention attn;
  LayerNorm ln_2;
  Mlp mlp;

  Block(const Scope& s, const BlockConfig& c)
      : ln_1(s / "ln_1", c.width, c.bias), attn(s / "attn", c), ln_2(s / "ln_2", c.width, c.bias), mlp(s / "mlp", c) {}

  // `own`: what this application of the block adds to its weights.
  Var operator()(const Var& x, KvCache* cache = nullptr, int slot = 0, const LowRankBlock& own = {}) const {
    const auto [h, normed] = ln_2.of_sum(x, attn(ln_1(x), cache, slot, own.attn));
    return h + mlp(normed, own.mlp);
  }
};

inline std::vector<Block> blocks(const Scope& s, int n, const BlockConfig& c) {
  std::vector<Block> list;
  for (int i = 0; i < n; ++i) list.emplace_back(s / i, c);
  return list;
}

// The blocks one after the other; block i uses cache slot first_slot + i. With `recompute`, the tape keeps each block's
// input alone.
inline Var through(const std::vector<Block>& list, Var h, KvCache* cache = nullptr, int first_slot = 0,
                   bool recompute = false) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Block* block = &list[i];
    const int slot = first_slot + static_cast<int>(i);
    const auto run = [block, h, cache, slot] { return (*block)(h, cache, slot); };
    h = recompute ? checkpoint(run) : run();
  }
  return h;
}

}  // namespace grt
