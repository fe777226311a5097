#include "cuda/cudnn/attention.h"

namespace grt::cudnn {
namespace {

using cuda::SdpaShape;
using Node = Graph::Node;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;

// The tensors of attention, each (B, H, rows, columns).
struct Layouts {
  Layout wide, wide_transposed;      // a part of qkv
  Layout narrow;                     // out
  Layout scores, scores_transposed;  // temporaries
  Layout rows;                       // one number for each query

  explicit Layouts(const SdpaShape& s) {
    const std::int64_t channels = s.heads * s.width, t = s.time;
    wide = {{s.batch, s.heads, t, s.width}, {3 * channels * t, s.width, 3 * channels, 1}};
    wide_transposed = {{s.batch, s.heads, s.width, t}, {3 * channels * t, s.width, 1, 3 * channels}};
    narrow = {wide.extents, {channels * t, s.width, channels, 1}};
    scores = dense({s.batch, s.heads, t, t});
    scores_transposed = {scores.extents, {s.heads * t * t, t * t, 1, t}};
    rows = dense({s.batch, s.heads, t, 1});
  }
};

// Minus infinity where a key's place is behind its query's.
Node masked(Graph& g, const Layouts& l, Node scores) {
  const Node row = g.temporary(l.scores, CUDNN_DATA_INT32), column = g.temporary(l.scores, CUDNN_DATA_INT32),
             seen = g.temporary(l.scores, CUDNN_DATA_BOOLEAN), y = g.temporary(l.scores);
  g.index(row, scores, 2);
  g.index(column, scores, 3);
  g.not_below(seen, row, column);
  g.select(y, seen, scores, g.scalar(kMinusInfinity));
  return y;
}

Node pointwise(Graph& g, const Layout& layout, cudnnPointwiseMode_t mode, Node x, Node b = nullptr,
               cudnnDataType_t type = CUDNN_DATA_FLOAT) {
  const Node y = g.temporary(layout, type);
  g.pointwise(y, mode, x, b);
  return y;
}
Node product(Graph& g, const Layout& layout, Node a, Node b) {
  const Node c = g.temporary(layout);
  g.matmul(c, a, b);
  return c;
}

}  // namespace

// With s = mask(scale q k^T):  e = exp(s - max s),  out = (e / sum e) v,  lse = max s + log sum e.
Graph attention_graph(const SdpaShape& shape) {
  const Layouts l(shape);
  Graph g;
  const Node q = g.tensor(kQ, l.wide, kBf16), k = g.tensor(kK, l.wide_transposed, kBf16),
             v = g.tensor(kV, l.wide, kBf16), out = g.tensor(kOut, l.narrow, kBf16),
             lse = g.tensor(kLse, l.rows, CUDNN_DATA_FLOAT);
  const Node scaled = pointwise(g, l.scores, CUDNN_POINTWISE_MUL, product(g, l.scores, q, k), g.scalar(kScale));
  const Node s = masked(g, l, scaled);
  const Node top = g.temporary(l.rows), total = g.temporary(l.rows);
  g.reduce(top, CUDNN_REDUCE_TENSOR_MAX, s);
  const Node e = pointwise(g, l.scores, CUDNN_POINTWISE_EXP, pointwise(g, l.scores, CUDNN_POINTWISE_SUB, s, top));
  g.reduce(total, CUDNN_REDUCE_TENSOR_ADD, e);
  g.pointwise(lse, CUDNN_POINTWISE_ADD, top, pointwise(g, l.rows, CUDNN_POINTWISE_LOG, total));
  g.matmul(out, pointwise(g, l.scores, CUDNN_POINTWISE_DIV, e, total, kBf16), v);
  return g;
}

// The derivative stands in ops/attention.cpp. A mask before exp needs no other behind it.
Graph attention_backward_graph(const SdpaShape& shape) {
  const Layouts l(shape);
  Graph g;
  const Node q = g.tensor(kQ, l.wide, kBf16), kt = g.tensor(kK, l.wide_transposed, kBf16),
             vt = g.tensor(kV, l.wide_transposed, kBf16), out = g.tensor(kOut, l.narrow, kBf16),
             lse = g.tensor(kLse, l.rows, CUDNN_DATA_FLOAT), dout = g.tensor(kDout, l.narrow, kBf16),
             delta = g.tensor(kDelta, l.rows, CUDNN_DATA_FLOAT), scale = g.scalar(kScale);
  const Node sum = g.temporary(l.rows);
  g.reduce(sum, CUDNN_REDUCE_TENSOR_ADD, pointwise(g, dense(l.narrow.extents), CUDNN_POINTWISE_MUL, dout, out));
  g.pointwise(delta, CUDNN_POINTWISE_MUL, sum, g.scalar(kOne));

  const Node scaled = pointwise(g, l.scores, CUDNN_POINTWISE_MUL, product(g, l.scores, q, kt), scale);
  const Node s = masked(g, l, pointwise(g, l.scores, CUDNN_POINTWISE_SUB, scaled, lse));
  const Node p = pointwise(g, l.scores, CUDNN_POINTWISE_EXP, s);
  const Node pt = g.temporary(l.scores_transposed, kBf16);
  g.reshape(pt, p);
  g.matmul(g.tensor(kDv, l.wide, kBf16), pt, dout);

  const Node dp = pointwise(g, l.scores, CUDNN_POINTWISE_SUB, product(g, l.scores, dout, vt), delta);
  const Node unscaled = pointwise(g, l.scores, CUDNN_POINTWISE_MUL, dp, p);
  const Node ds = pointwise(g, l.scores, CUDNN_POINTWISE_MUL, unscaled, scale, kBf16);
  const Node dst = g.temporary(l.scores_transposed, kBf16), k = g.temporary(l.wide, kBf16);
  g.reshape(dst, ds);
  g.matmul(g.tensor(kDk, l.wide, kBf16), dst, q);
  g.reshape(k, kt);
  g.matmul(g.tensor(kDq, l.wide, kBf16), ds, k);
  return g;
}

}  // namespace grt::cudnn
