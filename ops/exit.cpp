// Losses at several exits, weighted by the probabilities of stopping there.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {
namespace {

void check_shapes(const char* op, const Tensor& gates, const Tensor& losses) {
  check(gates.shape().rank() == 2 && gates.numel() > 0 && gates.shape() == losses.shape(),
        "{}: gates {} and losses {} must both be (rows, exits)", op, gates.shape(), losses.shape());
  check_alike(op, gates, losses);
}

}  // namespace

Tensor exit_distribution(const Tensor& gates) {
  check(gates.shape().rank() == 2 && gates.numel() > 0, "exit_distribution: gates must be (rows, exits), not {}",
        gates.shape());
  const Tensor p = Tensor::like(gates);
  gates.device().kernels().exit_distribution(p, gates);
  return p;
}

// With N rows and, at exit s, l its loss, c = l + beta ln p (the constant beta of its derivative cancels over p):
//   dl_s = p_s / N,   dgate_s = ((1 - lambda_s) p_s c_s - lambda_s sum_{q>s} p_q c_q) / N,   dgate of the last = 0.
Var exit_loss(const Var& gates, const Var& losses, double beta) {
  check_shapes("exit_loss", gates.value(), losses.value());
  const std::int64_t rows = gates.shape()[0];
  const Tensor values = Tensor::empty({rows}, gates.value().dtype(), gates.device());
  const Tensor mean = Tensor::empty({1}, gates.value().dtype(), gates.device());
  Kernels& k = gates.kernels();
  k.exit_loss(values, gates.value(), losses.value(), beta);
  k.sum({mean}, values, 1.0 / static_cast<double>(rows));

  return record(
      "exit_loss", mean, {gates, losses},
      [&k, dgates = gates.sink(), dlosses = losses.sink(), gates = gates.value(), losses = losses.value(),
       beta](const Tensor& dy) { k.exit_loss_backward(dgates.into(), dlosses.into(), dy, gates, losses, beta); });
}

// dgate_s = (lambda_s - (1 - w_s)) / (N S), and 0 for the first.
Var exit_gate_loss(const Var& gates, const Tensor& losses) {
  check_shapes("exit_gate_loss", gates.value(), losses);
  const Tensor values = Tensor::empty({gates.shape()[0]}, losses.dtype(), losses.device());
  const Tensor mean = Tensor::empty({1}, losses.dtype(), losses.device());
  Kernels& k = gates.kernels();
  k.exit_gate_loss(values, gates.value(), losses);
  k.sum({mean}, values, 1.0 / static_cast<double>(gates.value().numel()));

  return record("exit_gate_loss", mean, {gates},
                [&k, dgates = gates.sink(), gates = gates.value(), losses](const Tensor& dy) {
                  k.exit_gate_loss_backward(dgates.into(), dy, gates, losses);
                });
}

Tensor expected_losses(const Tensor& gates, const Tensor& losses) {
  check_shapes("expected_losses", gates, losses);
  const Tensor values = Tensor::empty({gates.dim(0)}, gates.dtype(), gates.device());
  gates.device().kernels().exit_loss(values, gates, losses, 0);
  return values;
}

}  // namespace grt
