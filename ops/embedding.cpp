// Token and position embedding.
#include "ops/ops.h"
#include "ops/pass.h"

namespace grt {

// dwte[v] = sum of dy where the token is v;  dwpe[first + t] = sum over the batch of dy at t.
Var embedding(const Tensor& tokens, const Var& wte, const Var& wpe, Scalar<std::int64_t> first) {
  check(tokens.shape().rank() == 2 && tokens.dtype() == DType::i32, "embedding: tokens must be (B, T) i32, not {} {}",
        tokens.shape(), name_of(tokens.dtype()));
  const std::int64_t channels = wte.shape().last(), time = tokens.dim(1);
  check(wpe.shape().last() == channels, "embedding: wte is {}, wpe {}", wte.shape(), wpe.shape());
  const std::int64_t begin = first.known();
  check(begin >= 0 && begin + time <= wpe.shape()[0], "embedding: positions {}..{} do not fit into wpe {}", begin,
        begin + time - 1, wpe.shape());
  check_weight("embedding", wpe, wte, {wte, wpe});

  const Tensor y = Tensor::empty({tokens.dim(0), time, channels}, wpe.value().dtype(), wte.device());
  Kernels& k = wte.kernels();
  k.embedding(y, tokens, wte.value(), wpe.value(), first);

  return record("embedding", y, {wte, wpe},
                [&k, dwte = wte.sink(), dwpe = wpe.sink(), tokens, begin](const Tensor& dy) {
                  k.embedding_backward(dwte.accumulate(), dwpe.accumulate(), dy, tokens, begin);
                });
}

}  // namespace grt
