// The part of cuBLASLt that the backend calls: D = op(A) op(B) + beta C, column-major, A and B of f32 or both of bf16,
// all else f32, with a bias for each row if asked. Enqueued like a kernel; sums are taken in double.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cuda/emu/emu.h"

namespace {

struct Description {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const float* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};

template <class T>
T value_of(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// A matrix in memory, or its transpose.
struct Matrix {
  const void* data;
  bool bf16;
  std::int64_t row_step, column_step;
  float at(std::int64_t r, std::int64_t c) const {
    const std::int64_t i = r * row_step + c * column_step;
    if (!bf16) return static_cast<const float*>(data)[i];
    return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16);
  }
};
Matrix matrix(const void* data, const Layout& layout, cublasOperation_t operation) {
  const bool bf16 = layout.type == CUDA_R_16BF;
  if (operation == CUBLAS_OP_N) return {data, bf16, 1, layout.leading};
  return {data, bf16, layout.leading, 1};
}

struct Product {
  Matrix a, b, c;
  float* d;
  std::int64_t rows, columns, inner, leading;
  float alpha, beta;
  const float* bias;

  // C is not read where beta is 0.
  void operator()() const {
    std::vector<double> sums(static_cast<std::size_t>(rows));
    for (std::int64_t q = 0; q < columns; ++q) {
      for (std::int64_t r = 0; r < rows; ++r) sums[r] = beta == 0 ? 0.0 : static_cast<double>(beta * c.at(r, q));
      for (std::int64_t k = 0; k < inner; ++k) {
        const double factor = static_cast<double>(alpha * b.at(k, q));
        for (std::int64_t r = 0; r < rows; ++r) sums[r] += static_cast<double>(a.at(r, k)) * factor;
      }
      for (std::int64_t r = 0; r < rows; ++r)
        d[q * leading + r] = static_cast<float>(sums[r] + (bias ? static_cast<double>(bias[r]) : 0.0));
    }
  }
};

}  // namespace

// The handles of the library are opaque pointers, or structs that hold one in their first word.
struct cublasLtContext {};

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_INVALID_VALUE";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t) {
  auto* const d = reinterpret_cast<Description*>(description);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      d->a = value_of<cublasOperation_t>(value);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      d->b = value_of<cublasOperation_t>(value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      d->epilogue = value_of<cublasLtEpilogue_t>(value);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      d->bias = value_of<const float*>(value);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  if (type != CUDA_R_32F && type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (rows == 0 || columns == 0 || leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new std::uint64_t(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<std::uint64_t*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    *reinterpret_cast<std::uint64_t*>(preference) = value_of<std::uint64_t>(value);
  return CUBLAS_STATUS_SUCCESS;
}
// One way to do it, with a little workspace if there may be some, so that the backend's is used; or none, as config
// says: by what it returns or, where only the workspace is in the way, by the state of a way that cannot be gone.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* result, int* count) {
  using grt::emu::Algorithms;
  const Algorithms all = grt::emu::config.algorithms;
  const bool plain = reinterpret_cast<Description*>(description)->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  const std::uint64_t workspace = std::min<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(preference), 64);
  *result = {};
  result->workspaceSize = result->algo.data[0] = workspace;
  *count = 0;
  const bool found = all == Algorithms::all || (all == Algorithms::without_bias && plain) ||
                     (all == Algorithms::without_workspace && plain && workspace == 0);
  if (!found && !(all == Algorithms::without_workspace && plain)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = 1;
  if (!found) {
    result->state = CUBLAS_STATUS_NOT_SUPPORTED;
    result->algo.data[0] = UINT64_MAX;  // the workspace that it would want
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* way, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Description how = *reinterpret_cast<Description*>(description);
  const Layout la = *reinterpret_cast<Layout*>(a_layout), lb = *reinterpret_cast<Layout*>(b_layout),
               lc = *reinterpret_cast<Layout*>(c_layout), ld = *reinterpret_cast<Layout*>(d_layout);
  const std::uint64_t a_rows = how.a == CUBLAS_OP_N ? la.rows : la.columns;
  const std::uint64_t a_columns = how.a == CUBLAS_OP_N ? la.columns : la.rows;
  const std::uint64_t b_rows = how.b == CUBLAS_OP_N ? lb.rows : lb.columns;
  const std::uint64_t b_columns = how.b == CUBLAS_OP_N ? lb.columns : lb.rows;
  if (a_rows != ld.rows || b_columns != ld.columns || a_columns != b_rows || lc.rows != ld.rows ||
      lc.columns != ld.columns || workspace_bytes < way->data[0])
    return CUBLAS_STATUS_INVALID_VALUE;
  if (la.type != lb.type || lc.type != CUDA_R_32F || ld.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool biased = how.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!biased && how.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  int argument = 0;
  for (const void* p : {a, b, c, static_cast<const void*>(d), static_cast<const void*>(workspace),
                        static_cast<const void*>(biased ? how.bias : nullptr)})
    grt::emu::check_pointer(p, argument++);
  const Product product{matrix(a, la, how.a),
                        matrix(b, lb, how.b),
                        matrix(c, lc, CUBLAS_OP_N),
                        static_cast<float*>(d),
                        static_cast<std::int64_t>(ld.rows),
                        static_cast<std::int64_t>(ld.columns),
                        static_cast<std::int64_t>(a_columns),
                        ld.leading,
                        value_of<float>(alpha),
                        value_of<float>(beta),
                        biased ? how.bias : nullptr};
  grt::emu::enqueue(stream, product);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
