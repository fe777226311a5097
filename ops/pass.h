// What operations share about gradients: how one goes through unchanged, and what has none.
#pragma once

#include "autograd/tape.h"
#include "ops/kernels.h"

namespace grt {

// d(input) += dy: shares the memory where nothing was there, adds otherwise.
inline void pass(Kernels& k, const Sink& input, const Tensor& dy) {
  if (input.fresh())
    input.adopt(dy);
  else
    k.copy(input.into(), dy);
}

// y = a + b, however it was computed, as a value that passes its gradient to both (elementwise.cpp).
Var record_sum(const Tensor& y, const Var& a, const Var& b);

// Throws Error naming `op` where a packed weight meets what it is not made for: f64, or a record.
inline void check_packed(const char* op, const Var& x, const Var& w, std::initializer_list<Var> inputs) {
  if (!is_packed(w.value().dtype())) return;
  const char* const type = name_of(w.value().dtype());
  check(x.value().dtype() == DType::f32, "{}: w {} is {}, so the other factor must be f32, not {}", op, w.shape(), type,
        name_of(x.value().dtype()));
  check(!recorded(inputs), "{}: w {} is {}, which is for inference: it has no gradient", op, w.shape(), type);
}

}  // namespace grt
