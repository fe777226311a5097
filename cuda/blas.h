// Matrix products by cuBLASLt, row-major. What cuBLASLt finds out about a product is kept for the next of its kind.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "core/tensor.h"

namespace grt::cuda {

// y (rows, columns), of rows `stride` elements apart as those of plus, = plus + bias (columns) in each row; what is not
// given is 0. put_sum.cu.
void put_sum(float* y, std::int64_t stride, std::int64_t rows, std::int64_t columns, const float* plus,
             const float* bias, cudaStream_t stream);

// op(data) with its extents; rows of data, f32 or bf16, are `stride` elements apart.
struct Matrix {
  const void* data;
  DType type;
  std::int64_t rows, columns, stride;
  bool transposed;
};
inline Matrix transpose(const Matrix& m) { return {m.data, m.type, m.columns, m.rows, m.stride, !m.transposed}; }

class Blas {
 public:
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // y (a.rows, b.columns), of rows `stride` elements apart, = a b, of one type, summed in f32, + bias (b.columns) if
  // given, + plus if given, which lies in memory as y does and may be y itself. Throws Error that names the product if
  // cuBLASLt has no way to do it.
  void multiply(float* y, std::int64_t stride, const float* plus, const Matrix& a, const Matrix& b, const float* bias,
                Device& device, cudaStream_t stream);

 private:
  struct Plan;
  using Key = std::array<std::int64_t, 13>;
  Plan& plan(float* y, std::int64_t stride, const float* plus, const Matrix& a, const Matrix& b, const float* bias);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  Tensor workspace_;  // as large as a plan may wish: graphs go on using it, so it stays where it is
};

}  // namespace grt::cuda
