// What is in force on a thread is one pointer of its own each: the tape that records, and the observer.
#include "autograd/tape.h"

namespace grt {
namespace {
thread_local Tape* current = nullptr;
thread_local const Observe::See* observer = nullptr;
}  // namespace

Into Sink::into() const {
  if (!slot_) return {};
  Slot& s = *slot_;
  if (!s.written) {
    if (!s.fixed) s.grad = Tensor::empty(shape_, s.dtype, *s.device);
    s.written = true;
    s.adopted = false;
    return {s.grad.view(shape_), false};
  }
  if (s.adopted && s.grad.shared()) s.grad = s.grad.clone();
  s.adopted = false;
  return {s.grad.view(shape_), true};
}

Into Sink::accumulate() const {
  Into part = into();
  if (part && !part.add) slot_->device->zero(part.to.raw(), part.to.bytes());
  part.add = true;
  return part;
}

void Sink::adopt(const Tensor& dy) const {
  check(fresh(), "adopt: the slot has a gradient already, or wants none");
  slot_->grad = dy.view(shape_);
  slot_->written = slot_->adopted = true;
}

Var Var::leaf(Tensor value) {
  Var v(std::move(value));
  v.slot_ = std::make_shared<Slot>(Slot{v.value_.dtype(), &v.value_.device(), {}});
  return v;
}

Var Var::parameter(Tensor value, Tensor grad) {
  check(value.shape() == grad.shape(), "parameter: value {} and gradient {} differ", value.shape(), grad.shape());
  Var v = leaf(std::move(value));
  v.slot_->grad = std::move(grad);
  v.slot_->fixed = true;
  return v;
}

void Var::clear_grad() const {
  if (!slot_) return;
  slot_->written = false;
  if (!slot_->fixed) slot_->grad = {};
}

Var Var::view(Shape shape) const {
  Var v = *this;
  v.value_ = value_.view(shape);
  return v;
}

Tape* Tape::recording() { return current; }

void Tape::push(std::vector<Var*> outputs, std::initializer_list<Var> inputs, Backward backward) {
  std::vector<Sink> repeated;
  for (const Var* a = inputs.begin(); a != inputs.end(); ++a)
    for (const Var* b = inputs.begin(); b != a; ++b)
      if (a->slot_ && a->slot_ == b->slot_) repeated.push_back(a->sink());
  std::vector<std::shared_ptr<Slot>> slots;
  std::vector<Shape> shapes;
  for (Var* v : outputs) {
    *v = Var::leaf(std::move(v->value_));
    slots.push_back(v->slot_);
    shapes.push_back(v->shape());
  }
  steps_.push_back([slots = std::move(slots), shapes = std::move(shapes), repeated = std::move(repeated),
                    backward = std::move(backward)] {
    std::vector<Tensor> douts(slots.size());
    bool any = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i]->written) continue;
      // Taken out of the slot: once an input adopts it, that input is its only owner.
      douts[i] = slots[i]->grad.view(shapes[i]);
      slots[i]->grad = {};
      slots[i]->written = false;
      any = true;
    }
    if (!any) return;
    for (const Sink& sink : repeated) sink.accumulate();
    backward(douts);
  });
}

void Tape::backward(const Var& output, const Tensor& seed) {
  check(output.wants_grad(), "backward: the output depends on nothing that wants a gradient");
  check(!output.has_grad(), "backward: the output {} has a gradient already", output.shape());
  check(seed.shape() == output.shape(), "backward: the seed is {}, the output {}", seed.shape(), output.shape());
  check(seed.dtype() == output.value().dtype(), "backward: the seed is {}, the output {}", name_of(seed.dtype()),
        name_of(output.value().dtype()));
  const Sink sink = output.sink();
  if (sink.fresh())
    sink.adopt(seed);
  else  // a parameter, whose gradient has a place of its own
    output.device().copy(sink.into().to.raw(), seed.raw(), seed.bytes());
  Record off(nullptr);
  while (!steps_.empty()) {
    const std::function<void()> step = std::move(steps_.back());  // dies at the end of this turn, and what it saved
    steps_.pop_back();
    step();
  }
}

Record::Record(Tape* tape) : previous_(current) { current = tape; }
Record::~Record() { current = previous_; }

Observe::Observe(See see) : see_(std::move(see)), previous_(observer) { observer = &see_; }
Observe::~Observe() { observer = previous_; }

void observed(std::string_view op, const Tensor& out) {
  if (observer) (*observer)(op, out);
}

bool recorded(std::initializer_list<Var> inputs) {
  if (!current) return false;
  for (const Var& in : inputs)
    if (in.wants_grad()) return true;
  return false;
}

Var checkpoint(std::function<Var()> block) {
  Tape* tape = current;
  if (!tape) return block();
  Var out;
  {
    Record off(nullptr);
    out = block();
  }
  tape->push({&out}, {}, [block = std::move(block)](const std::vector<Tensor>& dout) {
    Tape inner;
    Var again;
    {
      Record on(&inner);
      again = block();
    }
    inner.backward(again, dout[0]);
  });
  return out;
}

}  // namespace grt
