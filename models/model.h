// What every language model offers: logits at any depth, and the counts that are derived from its structure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/backbone.h"
#include "models/depth.h"

namespace grt {

// Sees what a pass computes: before the recurrence at step 0, in it at step r = 1, 2, ... (models/grt.cpp for the
// equations). All models: "embedding"; "state", which dense has after each block. Besides, ouro: "exit_logit", of
// stopping at an exit that is visited, (..., 1). grt and poisson: "anchor", what re-enters each step. All recurrent
// ones but mor: "input" and "proposal", what enters and leaves the core. grt: "gate_logit", before tau divides it. mor:
// "routed", the positions a step takes, (B, k) i32, filled up with -1, and "router_logit", sequence by sequence those
// of the positions among which it chooses; causally from step 2 on.
using Look = std::function<void(std::string_view what, int step, const Tensor& value)>;

// Analysis in evaluation: what stands in the anchor's place in the input of each step.
enum class Reinjection { prelude, state, embedding, zero };

// By what tokens stop on their own: the divergence of the distributions of two exits that follow one another, how far
// the gate is open, or the probability of having stopped.
enum class HaltKind { kl, gate, prob };

// A pass with a cache in which tokens stop on their own, to the depth asked for at most. A token that has stopped takes
// no further part: later ones see its keys and values of its last step in all that follow, and in the coda those of its
// exit, or of the depth under way before that.
struct Halting {
  // After `depth` steps, of the rows under way (1, n, d): those that go on, ascending. `seen` is the exit's state z if
  // sees_exits; else the state of the recurrence, and a token passes through the coda after its last step alone.
  std::function<std::vector<std::int32_t>(int depth, const Tensor& seen)> going;
  bool sees_exits = true;
  std::vector<int>* depths = nullptr;  // if given, becomes the steps of each row
};

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
  KvCache* cache = nullptr;  // earlier tokens; of several exits, the last one's coda stays. Made for at least its depth
  std::optional<float> forced_gate = {};  // grt, analysis only: the gate's value everywhere
  bool exit_gate_alone = false;           // ouro: loss() is that of the exit gate's own training, the model frozen
  const Teacher* teacher = nullptr;       // loss(): cross-entropy becomes distillation; not for ouro
  bool causal_routing = false;            // mor: no token's way depends on later ones; else by top-k over the sequence
  const Halting* halting = nullptr;       // with a cache and one depth, where LanguageModel::halts
  const Look* look = nullptr;             // with `recompute`, sees a step again on the way back
  Reinjection reinjection = Reinjection::prelude;  // grt, poisson; grt's gate keeps its own anchor
  int steps = 0;  // of the recurrence, at least; exits() knows, and a step may prepare for one that surely follows

  NoiseKey noise(std::uint32_t site) const { return {key.seed, key.pass, site}; }
  void show(std::string_view what, int step, const Var& value) const {
    if (look) (*look)(what, step, value.value());
  }
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

// One of several rules by which a model decides which tokens take a step.
struct Routing {
  std::string name, words;  // words: of a line for people
  bool causal;              // Pass::causal_routing
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
  // Under the first an evaluation's losses are those of training, and its loss_NAME the same as its loss; those of the
  // others are reported beside them. None: there is one way to go.
  virtual std::vector<Routing> routings() const { return {}; }
  // Does something of before the recurrence enter each step, whose place Pass::reinjection gives away?
  virtual bool reinjects() const { return false; }
  virtual std::vector<std::string> applications(int depth) const = 0;  // block names in the order they are applied
  virtual KvLayout kv_layout(int depth) const = 0;
  // Is there a meaning in keeping one key and value of a layer that is applied several times?
  virtual bool reduces_kv() const { return false; }
  // Can tokens stop on their own, by what `kind` looks at?
  virtual bool halts(HaltKind) const { return false; }
  virtual Flops flops(std::int64_t context, int depth) const = 0;
  // Executed per token by a forward and backward pass of loss() without recomputation, in products: counted by
  // rehearsing one on the device of ops/plan.h. As a rule about three times the forward pass's.
  double training_flops(std::int64_t context, int depth) const;
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
  // Throws Error naming --kv and the model where it does not have the strategy.
  void check_kv(KvStrategy strategy) const;
  KvCache make_cache(std::int64_t batch, std::int64_t capacity, int depth,
                     KvStrategy strategy = KvStrategy::full) const;

  // Before params().allocate(): the matrices of all products, the tied head among them, will be stored as `type`, a
  // packed one. Such a model is for inference.
  void pack_weights(DType type) { params_.pack_matrices(type, backbone_->wpe); }

  const BackboneConfig& config() const { return backbone_->config; }
  Params& params() { return params_; }
  const Params& params() const { return params_; }
  Device& device() const { return params_.values().device(); }

 protected:
  Var embed(const Tensor& tokens, const Pass& pass) const;  // wte[token] + wpe[position], as each pass begins
  // The loss of one exit's state: cross-entropy, or what pass.teacher makes of it.
  Var head_loss(const Var& z, const Tensor& targets, const Pass& pass) const;

  Params params_;
  std::optional<Backbone> backbone_;
};

// Builds the model that `json` describes (key "architecture"), with declared but unallocated parameters. `where` names
// the source in errors.
std::unique_ptr<LanguageModel> make_model(const Json& json, const std::string& where);

}  // namespace grt
