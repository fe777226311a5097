#include "tools/bench/operations.h"

#include <algorithm>

#include "ops/cases.h"

namespace grt {
namespace {

// The group "attention" is a part of the group "ops".
bool belongs(const OpCase& c, const std::string& group) { return group != "attention" || c.op == "attention"; }

// Seconds of the backward pass of one run, the forward pass included where it computes the gradients.
double backward_once(const OpCase& c, const std::vector<Var>& inputs, const Tensor& seed) {
  for (const Var& v : inputs) v.clear_grad();
  Tape tape;
  Var out;
  const double forward = seconds_of([&] {
    Record on(&tape);
    out = c.run(inputs);
    seed.device().sync();
  });
  const double backward = seconds_of([&] {
    tape.backward(out, seed);
    seed.device().sync();
  });
  return c.gradient_in_forward ? forward + backward : backward;
}

Tensor ones(const Shape& shape, Device& device) {
  return Tensor::from<float>(shape, std::vector<float>(shape.numel(), 1.0f), device);
}

}  // namespace

void bench_ops(const RowChoice& choice, const std::string& group, Device& device, Report& report) {
  report.begin(group);
  for (const OpCase& c : bench_cases()) {
    if (!belongs(c, group) || !choice.wants(c.name())) continue;
    const std::vector<Var> inputs = make_inputs(c, DType::f32, device);
    Shape shape;
    const Timing forward = sample(choice.rounds, [&] {
      return seconds_of([&] {
        shape = c.run(inputs).shape();
        device.sync();
      });
    });
    report.add({group, c.name() + ", forward", forward, c.forward.flops, sizeof(float) * c.forward.elements, 0,
                Json::object()});
    if (c.backward.flops + c.backward.elements == 0) continue;  // nothing to do, or no derivative
    const Tensor seed = ones(shape, device);
    const Timing backward = sample(choice.rounds, [&] { return backward_once(c, inputs, seed); });
    report.add({group, c.name() + (c.gradient_in_forward ? ", forward and backward" : ", backward"), backward,
                c.backward.flops, sizeof(float) * c.backward.elements, 0, Json::object()});
  }
}

bool has_operation(const RowChoice& choice, const std::string& group) {
  const std::vector<OpCase> cases = bench_cases();
  return std::any_of(cases.begin(), cases.end(),
                     [&](const OpCase& c) { return belongs(c, group) && choice.wants(c.name()); });
}

}  // namespace grt
