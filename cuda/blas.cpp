#include "cuda/blas.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "cuda/cuda.h"

namespace grt::cuda {
namespace {

constexpr std::uint64_t kMostWorkspace = 32u << 20;  // what NVIDIA advises for Hopper

void blas_check(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuda: cuBLASLt, {}: {}", what, cublasLtGetStatusString(status));
}

// What `p` is a multiple of, in bytes, up to 256: cuBLASLt takes 256 for granted unless told.
std::uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | 256;
  return static_cast<std::uint32_t>(address & -address);
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t what, const T& value) {
  blas_check(cublasLtMatmulDescSetAttribute(description, what, &value, sizeof value), "describing a product");
}

// A row-major matrix is its own transpose column-major.
cublasLtMatrixLayout_t layout(DType type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t result = nullptr;
  blas_check(cublasLtMatrixLayoutCreate(&result, type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                        static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), stride),
             "describing a matrix");
  return result;
}
cublasLtMatrixLayout_t layout(const Matrix& m) {
  return m.transposed ? layout(m.type, m.columns, m.rows, m.stride) : layout(m.type, m.rows, m.columns, m.stride);
}

std::string described(const Matrix& m) {
  return fmt::format("({}, {}) {}{} of rows {} apart", m.rows, m.columns, name_of(m.type),
                     m.transposed ? ", transposed," : "", m.stride);
}

}  // namespace

struct Blas::Plan {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, y = nullptr;
  cublasLtMatmulHeuristicResult_t way = {};
  bool adds_bias = false;  // or that is left to put_sum()

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (cublasLtMatrixLayout_t l : {a, b, y})
      if (l) cublasLtMatrixLayoutDestroy(l);
    if (description) cublasLtMatmulDescDestroy(description);
  }

  // Whether there is a way with at most so much workspace, in bytes.
  bool choose_way(cublasLtHandle_t handle, const std::array<std::uint32_t, 3>& alignments, std::uint64_t workspace) {
    cublasLtMatmulPreference_t wishes = nullptr;
    blas_check(cublasLtMatmulPreferenceCreate(&wishes), "making a preference");
    const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(&cublasLtMatmulPreferenceDestroy)>
        owner(wishes, &cublasLtMatmulPreferenceDestroy);
    const auto wish = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      blas_check(cublasLtMatmulPreferenceSetAttribute(wishes, what, &value, sizeof value), "setting a preference");
    };
    wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description, b, a, y, y, wishes, 1, &way, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    blas_check(status, "choosing an algorithm");
    return found == 1 && way.state == CUBLAS_STATUS_SUCCESS;
  }
  void add_bias_in_product(bool adds) {
    adds_bias = adds;
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, adds ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  }
};

Blas::Blas() { blas_check(cublasLtCreate(&handle_), "starting it"); }
Blas::~Blas() {
  plans_.clear();
  if (handle_) cublasLtDestroy(handle_);
}

// cuBLASLt is column-major, so it computes y^T = b^T a^T: b is its first factor, and the bias belongs to its rows.
Blas::Plan& Blas::plan(float* y, std::int64_t stride, const float* plus, const Matrix& a, const Matrix& b,
                       const float* bias) {
  const std::uint32_t of_y = std::min(alignment(y), plus ? alignment(plus) : alignment(y));
  const std::array<std::uint32_t, 3> alignments{alignment(b.data), alignment(a.data), of_y};
  const std::uint32_t of_bias = bias ? alignment(bias) : 0;
  const bool bf16 = a.type == DType::bf16;
  const Key key{a.rows,       b.columns, a.columns, a.stride,      b.stride,      stride,       a.transposed,
                b.transposed, bf16,      of_bias,   alignments[0], alignments[1], alignments[2]};
  std::unique_ptr<Plan>& slot = plans_[key];
  if (slot) return *slot;
  auto made = std::make_unique<Plan>();
  blas_check(cublasLtMatmulDescCreate(&made->description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  set(made->description, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made->description, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias) {
    made->add_bias_in_product(true);
    set(made->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // the choice depends on its alignment
  }
  made->a = layout(a);
  made->b = layout(b);
  made->y = layout(DType::f32, a.rows, b.columns, stride);
  if (!made->choose_way(handle_, alignments, kMostWorkspace)) {
    if (bias) made->add_bias_in_product(false);
    const bool found =
        (bias && made->choose_way(handle_, alignments, kMostWorkspace)) || made->choose_way(handle_, alignments, 0);
    check(found, "cuda: cuBLASLt has no algorithm for a product: {} by {}, into rows {} apart", described(a),
          described(b), stride);
  }
  slot = std::move(made);
  return *slot;
}

void Blas::multiply(float* y, std::int64_t stride, const float* plus, const Matrix& a, const Matrix& b,
                    const float* bias, Device& device, cudaStream_t stream) {
  if (a.rows == 0 || b.columns == 0) return;
  if (a.columns == 0) return put_sum(y, stride, a.rows, b.columns, plus, bias, stream);
  Plan& p = plan(y, stride, plus, a, b, bias);
  if (p.adds_bias) set(p.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (!workspace_) workspace_ = Tensor::empty({kMostWorkspace / sizeof(float)}, DType::f32, device);
  const float one = 1, beta = plus ? 1 : 0;
  blas_check(cublasLtMatmul(handle_, p.description, &one, b.data, p.b, a.data, p.a, &beta, plus ? plus : y, p.y, y, p.y,
                            &p.way.algo, workspace_.raw(), workspace_.bytes(), stream),
             "a product");
  if (bias && !p.adds_bias) put_sum(y, stride, a.rows, b.columns, y, bias, stream);
}

}  // namespace grt::cuda
