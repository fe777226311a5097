// What operations share: how a gradient goes through unchanged, what has none, and which inputs go together.
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

inline void check_device(const char* op, const Tensor& first, const Tensor& other) {
  if (&other.device() != &first.device())
    fail("{}: the inputs {} and {} must lie on one device, not on {} and {}", op, first.shape(), other.shape(),
         first.device().name(), other.device().name());
}

// Throws Error naming `op` unless the others, some of which may be absent, have the type of the first and lie on its
// device.
template <class... Others>
void check_alike(const char* op, const Tensor& first, const Others&... others) {
  const auto check_one = [&](const Tensor& other) {
    if (!other) return;
    check(other.dtype() == first.dtype(), "{}: the inputs {} and {} must be of one type, not {} and {}", op,
          first.shape(), other.shape(), name_of(first.dtype()), name_of(other.dtype()));
    check_device(op, first, other);
  };
  (check_one(others), ...);
}

// The same for a weight w, which may be packed where the other factor is f32 and nothing is recorded.
inline void check_weight(const char* op, const Var& x, const Var& w, std::initializer_list<Var> inputs) {
  if (!is_packed(w.value().dtype())) return check_alike(op, x.value(), w.value());
  const char* const type = name_of(w.value().dtype());
  check(x.value().dtype() == DType::f32, "{}: w {} is {}, so the other factor must be f32, not {}", op, w.shape(), type,
        name_of(x.value().dtype()));
  check_device(op, x.value(), w.value());
  check(!recorded(inputs), "{}: w {} is {}, which is for inference: it has no gradient", op, w.shape(), type);
}

}  // namespace grt
