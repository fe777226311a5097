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

Ouro::Ouro(const OuroConfig& config) : config_(config) {
  const Scope root{&params_, ""};
  backbone_.emplace(root, config);
  const BlockConfig block = backbone_->block(config.applications());
  prelude_ = blocks(root / "prelude", config.n_prelude, block);
  core_ = blocks(root / "core", config.n_core, block);
  coda_ = blocks(root / "coda", config.n_coda, block);
  exit_gate_.emplace(root / "exit_gate", config.d_model, 1, true, Init{}, gate_bias(config.n_recurrences));
}

void Ouro::exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const {
  Var h = through(prelude_, backbone_->embed(tokens, pass.cache), pass.cache, 0, pass.recompute);
  int t = 0;
  for (const int depth : depths) {
    check_depth(depth);
    for (; t < depth; ++t) {
      const int first_slot = config_.n_prelude + t * config_.n_core;
      const auto step = [this, h, first_slot, cache = pass.cache] { return through(core_, h, cache, first_slot); };
      h = pass.recompute ? checkpoint(step) : step();
    }
    const int first_slot = config_.n_prelude + depth * config_.n_core;
    visit(depth, backbone_->ln_f(through(coda_, h, pass.cache, first_slot, pass.recompute)));
  }
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

Flops Ouro::flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double blocks = config_.n_prelude + static_cast<double>(config_.n_core) * depth + config_.n_coda;
  return {blocks * block_flops_paper(config_, context), 2 * d * config_.vocab_size,
          blocks * block_flops_executed(config_, context), 2 * d * config_.padded_vocab_size};
}

// A training pass runs coda and head at each exit, and the head's product once more to go back through it.
double Ouro::training_flops(std::int64_t context, int depth) const {
  const double d = static_cast<double>(config_.d_model);
  const double blocks = config_.n_prelude + static_cast<double>(config_.n_core + config_.n_coda) * depth;
  return 3 * (blocks * block_flops_executed(config_, context) + depth * 2 * d) +
         4 * (depth * 2 * d * config_.padded_vocab_size);
}

}  // namespace grt
