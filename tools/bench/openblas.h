// OpenBLAS where it is installed: loaded while the program runs, so that nothing else depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace grt {

// One factor of a product, row-major: rows are `stride` elements apart.
struct BlasFactor {
  const float* data;
  bool transposed;
  std::int64_t stride;
};

class OpenBlas {
 public:
  // The first of `files` that can be loaded; null if there is none.
  static std::unique_ptr<OpenBlas> find(std::span<const std::string> files = debian_builds());
  // Throws Error naming --openblas if `file` cannot be used.
  static std::unique_ptr<OpenBlas> load(const std::string& file);

  static std::span<const std::string> debian_builds();

  const std::string& name() const { return name_; }  // its version and how it was built
  void set_threads(int n) const { set_threads_(n); }
  // c (m, n) = op(a) op(b), added to c if `add`.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const BlasFactor& a, const BlasFactor& b, float* c,
                bool add) const;

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);
  using SetThreads = void (*)(int n);
  OpenBlas(void* library, const std::string& file);

  std::string name_;
  SetThreads set_threads_ = nullptr;
  Sgemm sgemm_ = nullptr;
};

// The kernels that this CPU can run, as the environment's OPENBLAS_CORETYPE names them, or "": a release takes a CPU
// that it does not know for one of long ago.
std::string openblas_core();

std::string name_of(const OpenBlas* blas);  // or, for null, that it is missing

}  // namespace grt
