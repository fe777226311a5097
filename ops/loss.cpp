// Next-token cross-entropy straight from the last hidden state, in chunks of rows.
#include <algorithm>

#include "ops/ops.h"

namespace grt {
namespace {

// Calls f(z rows, targets, logits, first row) for each chunk; the logits share one buffer.
template <class F>
void for_chunks(const Tensor& z, const Tensor& w, const Tensor& targets, std::int64_t chunk_bytes, F&& f) {
  const std::int64_t rows = z.shape().rows(), columns = w.dim(0);
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(size_of(z.dtype()));
  const std::int64_t chunk = std::clamp<std::int64_t>(chunk_bytes / row_bytes, 1, rows);
  const Tensor buffer = Tensor::empty({chunk, columns}, z.dtype(), z.device());
  const Tensor flat = targets.view({rows, 1});
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t n = std::min(chunk, rows - begin);
    const Tensor part = z.rows(begin, n), logits = buffer.rows(0, n);
    z.device().kernels().matmul({logits}, {}, {part}, {w, true}, {});
    f(part, flat.rows(begin, n), logits, begin);
  }
}

void check_shapes(const Tensor& z, const Tensor& w, const Tensor& targets, std::int64_t vocab) {
  check(w.shape() == Shape{w.dim(0), z.shape().last()}, "cross_entropy: z is {}, so w must be (V, {}), not {}",
        z.shape(), z.shape().last(), w.shape());
  check(targets.numel() == z.shape().rows() && targets.dtype() == DType::i32,
        "cross_entropy: z is {}, so there must be {} targets (i32), not {}", z.shape(), z.shape().rows(),
        targets.shape());
  check(0 < vocab && vocab <= w.dim(0), "cross_entropy: vocab is {}, w has {} rows", vocab, w.dim(0));
  check(targets.numel() > 0, "cross_entropy: there are no targets");
}

}  // namespace

// With p = softmax(logits), N rows:  dlogits = (p - onehot(target)) / N,  dz = dlogits w,  dw = dlogits^T z.
// Both are computed here, for an upstream gradient of 1, and scaled by the one that comes.
Var cross_entropy(const Var& z, const Var& w, const Tensor& targets, std::int64_t vocab, std::int64_t chunk_bytes) {
  check_shapes(z.value(), w.value(), targets, vocab);
  const std::int64_t rows = z.shape().rows();
  const DType dtype = z.value().dtype();
  const bool wanted = recorded({z, w});
  const Tensor losses = Tensor::empty({rows}, dtype, z.device());
  const Tensor dz = wanted && z.wants_grad() ? Tensor::empty({rows, z.shape().last()}, dtype, z.device()) : Tensor();
  const Tensor dw = wanted && w.wants_grad() ? Tensor::like(w.value()) : Tensor();

  Kernels& k = z.kernels();
  for_chunks(z.value(), w.value(), targets, chunk_bytes,
             [&](const Tensor& part, const Tensor& target, const Tensor& logits, std::int64_t begin) {
               const std::int64_t n = part.dim(0);
               const Tensor& dlogits = logits;  // in place
               k.cross_entropy(losses.range(begin, {n}), {wanted ? dlogits : Tensor()}, logits, target, vocab,
                               1.0 / static_cast<double>(rows));
               if (dz) k.matmul({dz.rows(begin, n)}, {}, {dlogits}, {w.value()}, {});
               if (dw) k.matmul({dw, begin > 0}, {}, {dlogits, true}, {part}, {});
             });
  const Tensor loss = Tensor::empty({1}, dtype, z.device());
  k.sum({loss}, losses, 1.0 / static_cast<double>(rows));

  return record("cross_entropy", loss, {z, w},
                [&k, to_z = z.sink(), to_w = w.sink(), dz, dw, shape = z.shape()](const Tensor& dloss) {
                  if (dz) k.scale(to_z.into(), dz.view(shape), dloss);
                  if (dw) k.scale(to_w.into(), dw, dloss);
                });
}

// dz = (sigmoid(z) - t) / N.
Var bce_with_logits(const Var& z, const Tensor& targets) {
  check(z.shape() == targets.shape() && z.value().dtype() == targets.dtype() && targets.numel() > 0,
        "bce_with_logits: z {} and targets {} must agree, and not be empty", z.shape(), targets.shape());
  const Tensor losses = Tensor::like(targets), loss = Tensor::empty({1}, targets.dtype(), z.device());
  const double factor = 1.0 / static_cast<double>(targets.numel());
  Kernels& k = z.kernels();
  k.bce_with_logits(losses, z.value(), targets);
  k.sum({loss}, losses, factor);
  return record("bce_with_logits", loss, {z}, [&k, dz = z.sink(), z = z.value(), targets, factor](const Tensor& dloss) {
    k.bce_with_logits_backward(dz.into(), dloss, z, targets, factor);
  });
}

// With u the upstream gradient of each row:  dlogits = u (p - onehot(target)), and dz and dw as above.
Var token_losses(const Var& z, const Var& w, const Tensor& targets, std::int64_t vocab, std::int64_t chunk_bytes) {
  check_shapes(z.value(), w.value(), targets, vocab);
  const Tensor losses = Tensor::empty({z.shape().rows()}, z.value().dtype(), z.device());
  Kernels& k = z.kernels();
  for_chunks(z.value(), w.value(), targets, chunk_bytes,
             [&](const Tensor& part, const Tensor& target, const Tensor& logits, std::int64_t begin) {
               k.cross_entropy(losses.range(begin, {part.dim(0)}), {}, logits, target, vocab, 1);
             });
  return record("token_losses", losses, {z, w},
                [&k, to_z = z.sink(), to_w = w.sink(), z = z.value(), w = w.value(), targets, vocab,
                 chunk_bytes](const Tensor& dlosses) {
                  const Into dz = to_z.into(), dw = to_w.into();
                  const Tensor again = Tensor::like(dlosses);
                  for_chunks(z, w, targets, chunk_bytes,
                             [&](const Tensor& part, const Tensor& target, const Tensor& logits, std::int64_t begin) {
                               const std::int64_t n = part.dim(0);
                               const Tensor& dlogits = logits;  // in place
                               k.cross_entropy(again.range(begin, {n}), {dlogits}, logits, target, vocab, 1);
                               k.scale_rows({dlogits}, dlogits, dlosses.range(begin, {n}));
                               if (dz) k.matmul({dz.to.rows(begin, n), dz.add}, {}, {dlogits}, {w}, {});
                               if (dw) k.matmul({dw.to, dw.add || begin > 0}, {}, {dlogits, true}, {part}, {});
                             });
                });
}

}  // namespace grt
