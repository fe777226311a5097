#include "models/ouro.h"

#include <cmath>
#include <numeric>

namespace grt {
namespace {

// The gate's initial bias: it stops with probability 1/R at each exit.
Init gate_bias(int exits) { return {exits > 1 ? -std::log(exits - 1.0) : 0, 0}; }

void append_column(Var& columns, const Var& values) {
  const Var column = values.view({values.shape().numel(), 1});
  columns = columns ? concat(columns, column) : column;
}

}  // namespace

Ouro::Ouro(const OuroConfig& config) : RecurrentModel(config), config_(config) {
  const Scope root{&params_, ""};
  exit_gate_.emplace(root / "exit_gate", config.d_model, 1, true, Init{}, gate_bias(config.n_recurrences));
}

RecurrentModel::Unrolled Ouro::unroll(const Tensor& tokens, const Pass& pass) const {
  return {prelude(embed(tokens, pass), pass), [this, pass](const Var& h, int t) { return core(h, t, pass); }, true,
          [](const Tensor&) {}};
}

Var Ouro::finish(const Var& h, int depth, const Pass& pass) const {
  const Var z = RecurrentModel::finish(h, depth, pass);
  if (pass.look) pass.show("exit_logit", depth, gate_logit(z));
  return z;
}

Ouro::Exits Ouro::run_exits(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const {
  check_depth(depth);
  std::vector<int> all(depth);
  std::iota(all.begin(), all.end(), 1);
  Exits e;
  exits(tokens, all, pass, [&](int, const Var& z) {
    append_column(e.gates, gate_logit(z));
    append_column(e.losses, token_losses(z, backbone_->wte->var, targets, config_.vocab_size));
  });
  return e;
}

Var Ouro::loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const {
  check(!pass.teacher, "ouro: weights the losses of its exits token by token; it cannot learn from a teacher");
  if (pass.exit_gate_alone) {
    Pass frozen = pass;
    frozen.recompute = false;  // nothing is recorded but the gate
    const auto [gates, losses] = run_exits(tokens, targets, depth, frozen);
    return exit_gate_loss(gates, losses.value());
  }
  const auto [gates, losses] = run_exits(tokens, targets, depth, pass);
  return exit_loss(gates, losses, config_.entropy_weight);
}

std::map<std::string, Tensor> Ouro::further_losses(const Tensor& tokens, const Tensor& targets,
                                                   const Pass& pass) const {
  const auto [gates, losses] = run_exits(tokens, targets, config_.n_recurrences, pass);
  return {{"loss_expected", expected_losses(gates.value(), losses.value())}};
}

}  // namespace grt
