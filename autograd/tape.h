// Reverse-mode automatic differentiation by a tape.
//
// An operation computes its value at once. If a tape is recording and an input wants a gradient, it also appends one
// step: a closure that, given the gradient of its output, adds to the gradients of its inputs. Steps are appended in
// the order of execution, which is a topological order, so backward() is a loop over the tape in reverse; there is no
// graph to search.
//
// With no tape recording, the same operations only compute: inference is the default.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace grt {

// The gradient belonging to one value: allocated at its first write, or, for a trained weight, in memory given to it.
struct Slot {
  DType dtype;
  Device* device;
  Tensor grad;
  bool written = false;
  bool fixed = false;    // grad is memory given from outside: it is written to, never replaced
  bool adopted = false;  // grad is memory that others may still read: it is copied before it is added to
};

// The way to an input's gradient, without the input: what a backward closure keeps of a value that it does not need to
// read. Where no gradient is wanted, into() and accumulate() give nothing and fresh() is false.
class Sink {
 public:
  Sink(std::shared_ptr<Slot> slot, Shape shape) : slot_(std::move(slot)), shape_(shape) {}

  Into into() const;        // for one write of the whole: the first stores, later ones add
  Into accumulate() const;  // for a write of a part: zeroed at the first, so it always adds
  bool fresh() const { return slot_ && !slot_->written && !slot_->fixed; }
  void adopt(const Tensor& dy) const;  // lets dy itself be the gradient, uncopied; throws unless fresh()

 private:
  std::shared_ptr<Slot> slot_;
  Shape shape_;
};

// A value that may have a gradient. A handle: copies share the value and the slot.
class Var {
 public:
  Var() = default;
  Var(Tensor value) : value_(std::move(value)) {}  // a constant: implicit on purpose
  static Var leaf(Tensor value);                   // wants a gradient
  // A trained weight: its gradient lives in `grad` and outlives the tape. After clear_grad() the next backward pass
  // stores there, further ones add.
  static Var parameter(Tensor value, Tensor grad);

  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  Device& device() const { return value_.device(); }
  Kernels& kernels() const { return value_.device().kernels(); }
  explicit operator bool() const { return static_cast<bool>(value_); }
  // Is this a handle of the same value, with the same gradient?
  bool is(const Var& v) const { return slot_ == v.slot_ && value_.raw() == v.value_.raw() && shape() == v.shape(); }

  bool wants_grad() const { return slot_ != nullptr; }
  bool has_grad() const { return slot_ && slot_->written; }  // did anything reach it?
  const Tensor& grad() const { return slot_->grad; }         // valid where has_grad()
  void clear_grad() const;
  Sink sink() const { return {slot_, shape()}; }
  Var view(Shape shape) const;  // a reshape shares the slot: it is not a step

 private:
  friend class Tape;
  Tensor value_;
  std::shared_ptr<Slot> slot_;
};

class Tape {
 public:
  // Propagates `seed` (the gradient of `output`, of its shape and type) to every leaf, emptying the tape. Throws if the
  // output depends on nothing that wants a gradient, and if it has one already.
  void backward(const Var& output, const Tensor& seed);
  std::size_t size() const { return steps_.size(); }

  // The tape in force on this thread, or null.
  static Tape* recording();

  // Appends a step for `outputs`, which become leaves that hand their gradients to `backward`: one tensor each, empty
  // where no gradient arrived. Steps whose outputs received none are skipped. A value that stands twice among the
  // inputs has its gradient zeroed first, so that each of its sinks adds, in whatever order a kernel writes them.
  using Backward = std::function<void(const std::vector<Tensor>& douts)>;
  void push(std::vector<Var*> outputs, std::initializer_list<Var> inputs, Backward backward);

 private:
  std::vector<std::function<void()>> steps_;
};

// While alive, operations on this thread are recorded on `tape` (null: not recorded at all).
class Record {
 public:
  explicit Record(Tape* tape);
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

 private:
  Tape* previous_;
};

// While alive, `see` is shown the name and output of each operation on this thread that can be recorded, and of some
// that cannot: how the first NaN is found.
class Observe {
 public:
  using See = std::function<void(std::string_view op, const Tensor& out)>;
  explicit Observe(See see);
  ~Observe();
  Observe(const Observe&) = delete;
  Observe& operator=(const Observe&) = delete;

 private:
  See see_;
  const See* previous_;
};

// Is anything that depends on these inputs to be recorded?
bool recorded(std::initializer_list<Var> inputs);

// Shows an operation's output to whoever observes.
void observed(std::string_view op, const Tensor& out);

// The one place where an operation meets the tape: returns `out` as a Var and, if need be, appends the step.
// backward(dout) is called only if a gradient arrived. Its capture list is written out in full: a Sink for each input,
// and each tensor that the operation saves.
template <class Backward>
Var record(std::string_view op, Tensor out, std::initializer_list<Var> inputs, Backward backward) {
  Var v(std::move(out));
  observed(op, v.value());
  if (recorded(inputs))
    Tape::recording()->push({&v}, inputs, [f = std::move(backward)](const std::vector<Tensor>& dout) { f(dout[0]); });
  return v;
}

// The same for an operation with several outputs: backward(douts), one tensor each, of which some may be empty.
template <class Backward>
std::vector<Var> record(std::string_view op, const std::vector<Tensor>& outs, std::initializer_list<Var> inputs,
                        Backward backward) {
  std::vector<Var> vars(outs.begin(), outs.end());
  for (const Tensor& out : outs) observed(op, out);
  if (!recorded(inputs)) return vars;
  std::vector<Var*> outputs;
  for (Var& v : vars) outputs.push_back(&v);
  Tape::recording()->push(std::move(outputs), inputs, std::move(backward));
  return vars;
}

// Runs `block` keeping none of its activations; backward() runs it again to get them back. What the block returns is a
// new value, made by an operation that is recorded: not a leaf, and not a constant.
Var checkpoint(std::function<Var()> block);

}  // namespace grt
