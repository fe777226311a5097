// What every language model offers: logits at any depth, and the counts that are derived from its structure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/backbone.h"
#include "models/depth.h"

namespace grt {

// What a model learns from besides the targets: another model's state at its head (B, T, d'), and that head.
struct Teacher {
  Tensor z, head;
  Distillation rule;
};

// Everything a forward pass may depend on besides its tokens. The models have no modes.
struct Pass {
  bool training = false;  // noise on
  // Names this pass's noise; `site` is set by the model. Outside training the seed alone counts, for poisson's state.
  NoiseKey key = {};
  bool recompute = false;    // the tape keeps one state for each recurrence (or dense block), no activations
  KvCache* cache = nullptr;  // tokens follow cache->past earlier ones; one exit depth only
  std::optional<float> forced_gate = {};  // grt, analysis only: the gate's value everywhere
  bool exit_gate_alone = false;           // ouro: loss() is that of the exit gate's own training, the model frozen
  const Teacher* teacher = nullptr;       // loss(): cross-entropy becomes distillation; not for ouro
  bool causal_routing = false;            // mor: no token's way depends on later ones; else by top-k over the sequence

  NoiseKey noise(std::uint32_t site) const { return {key.seed, key.pass, site}; }
};

// Floating-point operations of a forward pass, per token, with a context of S tokens.
struct Flops {
  double paper_body, paper_head;        // models' formula: (p + bR + c)(24 d^2 + 4 S d) + 10 R d^2; 2 d V
  double executed_body, executed_head;  // causal half of attention, hoisted anchor, padded head
};

inline constexpr int kAnyDepth = 100000;  // deeper is a slip of the finger

struct DepthRange {
  int lowest, full;  // full: the depth trained for
  int highest = kAnyDepth;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  // One pass over tokens (B, T) i32: calls visit(depth, z) for each of `depths` (ascending), where z (B, T, d) is the
  // normalized hidden state whose product with wte^T gives the logits of that exit.
  using Visit = std::function<void(int depth, const Var& z)>;
  virtual void exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const = 0;

  virtual DepthRange depths() const = 0;
  virtual DepthRule default_depth_rule() const = 0;
  // Is every exit trained for, not the one at full depth alone?
  virtual bool trains_exits() const { return default_depth_rule().random(); }
  virtual std::vector<std::string> applications(int depth) const = 0;  // block names in the order they are applied
  virtual Flops flops(std::int64_t context, int depth) const = 0;
  // Executed per token by a forward and backward pass of loss(): as a rule three times the forward pass's.
  virtual double training_flops(std::int64_t context, int depth) const;
  virtual Json config_json() const = 0;

  Var hidden(const Tensor& tokens, int depth, const Pass& pass) const;  // exits() at one depth
  // The training objective of one pass, of one element: cross-entropy, and what a model adds to it.
  virtual Var loss(const Tensor& tokens, const Tensor& targets, int depth, const Pass& pass) const;
  // Losses of each row (R) that a model reports besides those of its exits, by the name they are reported under.
  virtual std::map<std::string, Tensor> further_losses(const Tensor& tokens, const Tensor& targets,
                                                       const Pass& pass) const;
  // What this model, at full depth, teaches on `tokens`. Not to be recorded.
  Teacher teach(const Tensor& tokens, const Distillation& rule) const;
  Tensor logits(
      const Tensor& z) const;  // (..., d) -> (..., padded_vocab_size); columns from vocab_size on mean nothing
  Tensor losses(const Tensor& z, const Tensor& targets) const;  // (R), in nats

  // Throws Error naming `what` (a flag) and the range.
  void check_depth(int depth, const char* what = "depth") const;
  KvCache make_cache(std::int64_t batch, std::int64_t capacity, int depth) const;

  const BackboneConfig& config() const { return backbone_->config; }
  Params& params() { return params_; }
  const Params& params() const { return params_; }
  Device& device() const { return params_.values().device(); }

 protected:
  // The loss of one exit's state: cross-entropy, or what pass.teacher makes of it.
  Var head_loss(const Var& z, const Tensor& targets, const Pass& pass) const;

  Params params_;
  std::optional<Backbone> backbone_;
};

// Builds the model that `json` describes (key "architecture"), with declared but unallocated parameters. `where` names
// the source in errors.
std::unique_ptr<LanguageModel> make_model(const Json& json, const std::string& where);

}  // namespace grt
