// Token and position embeddings. Backward, each thread owns rows of a table and adds to them in the order of the
// tokens.
#include <algorithm>

#include "core/threads.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/simd.h"

namespace grt::cpu {
namespace {

template <class T>
void add_row(T* to, const T* from, std::int64_t width) {
  for_vectors<T>(width, [&](std::int64_t c, int count) {
    store_part(to + c, load_part(to + c, count) + load_part(from + c, count), count);
  });
}

}  // namespace

void CpuKernels::embedding(const Tensor& y, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                           Scalar<std::int64_t> first) {
  visit_real(wpe.dtype(), [&]<class T>() {
    const std::int64_t length = tokens.shape().last(), width = wte.shape().last();
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / width);
    parallel_for(tokens.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t id = tokens.data<std::int32_t>()[i];
        T* const out = y.data<T>() + i * width;
        const T* token = wte.data<T>() + id * width;
        if (is_packed(wte.dtype())) {
          read_packed_row(wte, id, y.data<float>() + i * width);
          token = out;
        }
        const T* const position = wpe.data<T>() + (first.get() + i % length) * width;
        for_vectors<T>(width, [&](std::int64_t c, int count) {
          store_part(out + c, load_part(token + c, count) + load_part(position + c, count), count);
        });
      }
    });
  });
}

void CpuKernels::embedding_backward(const Into& dwte, const Into& dwpe, const Tensor& dy, const Tensor& tokens,
                                    std::int64_t first) {
  visit_real(dy.dtype(), [&]<class T>() {
    const std::int64_t n = tokens.numel(), length = tokens.shape().last(), width = dy.shape().last();
    const T* const from = dy.data<T>();
    if (dwte) {
      const std::int32_t* const token = tokens.data<std::int32_t>();
      const std::int64_t rows = dwte.to.shape().rows();
      parallel_for(rows, (rows + 63) / 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < n; ++i)
          if (token[i] >= begin && token[i] < end)
            add_row(dwte.to.data<T>() + token[i] * width, from + i * width, width);
      });
    }
    if (dwpe)
      parallel_for(length, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = 0; row < n; row += length)
          for (std::int64_t t = begin; t < end; ++t)
            add_row(dwpe.to.data<T>() + (first + t) * width, from + (row + t) * width, width);
      });
  });
}

}  // namespace grt::cpu
