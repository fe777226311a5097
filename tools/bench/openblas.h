// OpenBLAS where it is installed: loaded while the program runs, so that nothing else depends on it.
#pragma once

#include <cstdint>
#include <memory>
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
  // `file`, or where it is empty Debian's builds, the one with OpenMP first. Null if none of those is installed; throws
  // Error naming --openblas if `file` cannot be used.
  static std::unique_ptr<OpenBlas> load(const std::string& file);

  // The kernels that suit this CPU's vectors, in the library's words: it takes a CPU that is newer than itself for a
  // much older one. Empty: what it finds by itself.
  static std::string best_core();

  const std::string& name() const { return name_; }  // its version and how it was built
  void set_threads(int n) const { set_threads_(n); }
  // c (m, n) = op(a) op(b), added to c if `add`.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const BlasFactor& a, const BlasFactor& b, float* c,
                bool add) const;

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);
  using SetThreads = void (*)(int n);
  OpenBlas() = default;

  std::string name_;
  SetThreads set_threads_ = nullptr;
  Sgemm sgemm_ = nullptr;
};

}  // namespace grt
