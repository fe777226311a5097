// Next-token losses straight from the last hidden state, in chunks of rows.
#include <algorithm>

#include "ops/ops.h"
#include "ops/pass.h"

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

void check_shapes(const char* op, const Tensor& z, const Tensor& w, const Tensor& targets, std::int64_t vocab) {
  check(w.shape() == Shape{w.dim(0), z.shape().last()}, "{}: z is {}, so w must be (V, {}), not {}", op, z.shape(),
        z.shape().last(), w.shape());
  check(targets.numel() == z.shape().rows() && targets.dtype() == DType::i32,
        "{}: z is {}, so there must be {} targets (i32), not {}", op, z.shape(), z.shape().rows(), targets.shape());
  check(0 < vocab && vocab <= w.dim(0), "{}: vocab is {}, w has {} rows", op, vocab, w.dim(0));
  check(targets.numel() > 0, "{}: there are no targets", op);
}

// The mean over all rows of the losses of `kernel`(losses, dlogits, logits, targets, first row, scale) on each chunk of
// logits z w^T. It also gives scale dlogits, from which  dz = dlogits w,  dw = dlogits^T z.  Both are computed here,
// for an upstream gradient of 1, and scaled by the one that comes.
template <class Kernel>
Var mean_loss(const char* op, const Var& z, const Var& w, const Tensor& targets, std::int64_t chunk_bytes,
              Kernel&& kernel) {
  const std::int64_t rows = z.shape().rows();
  const DType dtype = z.value().dtype();
  const bool wanted = recorded({z, w});
  check_weight(op, z, w, {z, w});
  const Tensor losses = Tensor::empty({rows}, dtype, z.device());
  const Tensor dz = wanted && z.wants_grad() ? Tensor::empty({rows, z.shape().last()}, dtype, z.device()) : Tensor();
  const Tensor dw = wanted && w.wants_grad() ? Tensor::like(w.value()) : Tensor();

  Kernels& k = z.kernels();
  const double scale = 1.0 / static_cast<double>(rows);
  for_chunks(z.value(), w.value(), targets, chunk_bytes,
             [&](const Tensor& part, const Tensor& target, const Tensor& logits, std::int64_t begin) {
               const std::int64_t n = part.dim(0);
               const Tensor& dlogits = logits;  // in place
               kernel(losses.range(begin, {n}), Into{wanted ? dlogits : Tensor()}, logits, target, begin, scale);
               k.linear_backward({dz ? dz.rows(begin, n) : dz}, {dw, begin > 0}, dlogits, part, {w.value()});
             });
  const Tensor loss = Tensor::empty({1}, dtype, z.device());
  k.sum({loss}, losses, scale);

  return record(op, loss, {z, w},
                [&k, to_z = z.sink(), to_w = w.sink(), dz, dw, shape = z.shape()](const Tensor& dloss) {
                  if (dz) k.scale(to_z.into(), dz.view(shape), dloss);
                  if (dw) k.scale(to_w.into(), dw, dloss);
                });
}

}  // namespace

// With p = softmax(logits), N rows:  dlogits = (p - onehot(target)) / N.
Var cross_entropy(const Var& z, const Var& w, const Tensor& targets, std::int64_t vocab, std::int64_t chunk_bytes) {
  check_shapes("cross_entropy", z.value(), w.value(), targets, vocab);
  return mean_loss(
      "cross_entropy", z, w, targets, chunk_bytes,
      [&](const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& target, std::int64_t,
          double scale) { z.kernels().cross_entropy(losses, dlogits, logits, target, vocab, scale); });
}

// As cross_entropy, with dlogits = ((1 - a) (p - onehot(target)) + a t (q - p_teacher)) / N, a the weight and q the
// student's distribution at temperature t.
Var distillation(const Var& z, const Var& w, const Tensor& targets, const Tensor& teacher_z, const Tensor& teacher_w,
                 std::int64_t vocab, const Distillation& rule, std::int64_t chunk_bytes) {
  check_shapes("distillation", z.value(), w.value(), targets, vocab);
  check_shapes("distillation, teacher", teacher_z, teacher_w, targets, vocab);
  check_weight("distillation", teacher_z, teacher_w, {});
  check_alike("distillation", z.value(), teacher_z);
  check(0 <= rule.weight && rule.weight <= 1 && rule.temperature > 0,
        "distillation: the weight must be 0..1 and the temperature positive, not {} and {}", rule.weight,
        rule.temperature);
  Tensor buffer;  // of the first chunk, which is the largest
  Kernels& k = z.kernels();
  const auto kernel = [&](const Tensor& losses, const Into& dlogits, const Tensor& logits, const Tensor& target,
                          std::int64_t begin, double scale) {
    const std::int64_t n = logits.dim(0);
    if (!buffer) buffer = Tensor::empty({n, teacher_w.dim(0)}, logits.dtype(), logits.device());
    const Tensor taught = buffer.rows(0, n);
    k.matmul({taught}, {}, {teacher_z.rows(begin, n)}, {teacher_w, true}, {});
    k.distillation(losses, dlogits, logits, taught, target, vocab, rule, scale);
  };
  return mean_loss("distillation", z, w, targets, chunk_bytes, kernel);
}

// dz = (sigmoid(z) - t) / N.
Var bce_with_logits(const Var& z, const Tensor& targets) {
  check(z.shape() == targets.shape() && targets.numel() > 0,
        "bce_with_logits: z {} and targets {} must agree, and not be empty", z.shape(), targets.shape());
  check_alike("bce_with_logits", z.value(), targets);
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
  check_shapes("token_losses", z.value(), w.value(), targets, vocab);
  check_weight("token_losses", z, w, {z, w});
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
                               k.linear_backward({dz ? dz.to.rows(begin, n) : dz.to, dz.add},
                                                 {dw.to, dw.add || begin > 0}, dlogits, part, {w});
                             });
                });
}

}  // namespace grt
