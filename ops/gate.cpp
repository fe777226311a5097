// The gated recurrent update.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {
namespace {

void check_gate(const char* op, const Var& z, const Var& h, const Var& o, const GateNoise& noise) {
  check(z.shape() == h.shape() && o.shape() == h.shape(), "{}: z {}, h {} and o {} must agree", op, z.shape(),
        h.shape(), o.shape());
  check(noise.tau > 0, "{}: the temperature tau is {}, must be positive", op, noise.tau);
  check_alike(op, h.value(), z.value(), o.value());
}

}  // namespace

// With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
// z is saved, not g: g sits near 0.98, where 1 - g would lose its digits. eps is drawn again from its key.
Var gate_mix(const Var& z, const Var& h, const Var& o, const GateNoise& noise) {
  check_gate("gate_mix", z, h, o, noise);
  const Tensor y = Tensor::like(h.value());
  Kernels& k = h.kernels();
  k.gate_mix(y, z.value(), h.value(), o.value(), noise);

  return record("gate_mix", y, {z, h, o},
                [&k, dz = z.sink(), dh = h.sink(), d_o = o.sink(), z = z.value(), h = h.value(), o = o.value(), noise](
                    const Tensor& dy) { k.gate_mix_backward(dz.into(), dh.into(), d_o.into(), dy, z, h, o, noise); });
}

// The gradient of the new state is the sum of those of its three faces, d = dh' + dnoisy + layernorm'(dnormed), which
// then goes through gate_mix.
GateStep gate_step(const Var& z, const Var& h, const Var& o, const Var& w, const GateNoise& noise,
                   const StateNoise& state_noise, float eps) {
  check_gate("gate_step", z, h, o, noise);
  const Shape channels{h.shape().last()};
  check(w.shape() == channels, "gate_step: h is {}, so w must be {}, not {}", h.shape(), channels, w.shape());
  check_alike("gate_step", h.value(), w.value());

  const auto like = [](const Tensor& t) { return Tensor::like(t); };
  const Tensor mean = Tensor::empty({h.shape().rows()}, h.value().dtype(), h.device());
  const NextState next{like(h.value()), state_noise.sigma == 0 ? Tensor() : like(h.value()), like(h.value()), mean,
                       like(mean)};
  Kernels& k = h.kernels();
  k.gate_step(next, z.value(), h.value(), o.value(), w.value(), noise, state_noise, eps);

  std::vector<Tensor> outs{next.y, next.normed};
  if (next.noisy) outs.push_back(next.noisy);
  const std::vector<Var> v = record(
      "gate_step", outs, {z, h, o, w},
      [&k, dz = z.sink(), dh = h.sink(), d_o = o.sink(), dw = w.sink(), z = z.value(), h = h.value(), o = o.value(),
       w = w.value(), saved = NextState{next.y, {}, {}, next.mean, next.rstd}, noise](const std::vector<Tensor>& d) {
        k.gate_step_backward(dz.into(), dh.into(), d_o.into(), d[1] ? dw.into() : Into{},
                             {d[0], d.size() > 2 ? d[2] : Tensor(), d[1]}, saved, z, h, o, w, noise);
      });
  return {v[0], v.size() > 2 ? v[2] : v[0], v[1]};
}

}  // namespace grt
