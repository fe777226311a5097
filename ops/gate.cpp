// The gated recurrent update.
#include "ops/ops.h"

namespace grt {

// With s = z / tau + sigma eps, g = sigmoid(s):  dz = dy (h - o) g (1 - g) / tau,  dh = dy g,  do = dy (1 - g).
// z is saved, not g: g sits near 0.98, where 1 - g would lose its digits. eps is drawn again from its key.
Var gate_mix(const Var& z, const Var& h, const Var& o, const GateNoise& noise) {
  check(z.shape() == h.shape() && o.shape() == h.shape(), "gate_mix: z {}, h {} and o {} must agree", z.shape(),
        h.shape(), o.shape());
  check(noise.tau > 0, "gate_mix: the temperature tau is {}, must be positive", noise.tau);

  const Tensor y = Tensor::like(h.value());
  Kernels& k = h.kernels();
  k.gate_mix(y, z.value(), h.value(), o.value(), noise);

  return record("gate_mix", y, {z, h, o},
                [&k, dz = z.sink(), dh = h.sink(), d_o = o.sink(), z = z.value(), h = h.value(), o = o.value(), noise](
                    const Tensor& dy) { k.gate_mix_backward(dz.into(), dh.into(), d_o.into(), dy, z, h, o, noise); });
}

}  // namespace grt
