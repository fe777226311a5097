// What the recurrent models share: prelude, a core that is applied again and again, coda. A model of its own keeps what
// one step of it does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.h"

namespace grt {

class RecurrentModel : public LanguageModel {
 public:
  // The recurrence of one pass, step by step. What stays the same over the steps (the anchor, who is routed where) lies
  // in `step`, which is called for r = 0, 1, ... in order.
  struct Unrolled {
    Var h;                                         // the state that the first step begins with, (B, T, d)
    std::function<Var(const Var& h, int r)> step;  // the state after r + 1 steps from that after r
    bool repeatable = true;                        // recomputation may call `step` again
  };
  virtual Unrolled unroll(const Tensor& tokens, const Pass& pass) const = 0;

  // The hidden state of the exit after `depth` steps, normalized for the head: coda and ln_f.
  virtual Var finish(const Var& h, int depth, const Pass& pass) const;

  void exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const override;
  std::vector<std::string> applications(int depth) const override;
  KvLayout kv_layout(int depth) const override;
  // Of the blocks and the head. A model adds what else it does.
  Flops flops(std::int64_t context, int depth) const override;

 protected:
  explicit RecurrentModel(const RecurrentConfig& config);

  void visit_exits(Unrolled u, std::span<const int> depths, const Pass& pass, const Visit& visit) const;
  Var prelude(const Var& embedding, const Pass& pass) const;
  Var core(const Var& x, int r, const Pass& pass) const;  // the core's application in step r
  // Are the operations of step r recorded in a pass whose next exit is at `depth`?
  virtual bool recorded(int, int) const { return true; }
  // The half of inject([h ; anchor]) that is the same in every step; none where Pass::reinjection puts the state there.
  Var fix_injection(const PairLinear& inject, const Var& embedding, const Var& anchor, const Pass& pass) const;

  int core_slot(int r) const { return static_cast<int>(prelude_.size() + r * core_.size()); }  // first of step r

  std::vector<Block> prelude_, core_, coda_;
};

}  // namespace grt
