#include "tools/bench/openblas.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include "core/error.h"

namespace grt {
namespace {

// Beside our own threads those of OpenMP rest between calls; the threads of the plain build go on turning.
constexpr std::array kBuilds = {"/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0",
                                "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", "libopenblas.so.0"};

template <class Function>
Function symbol(void* library, const char* name, const std::string& file) {
  void* const found = dlsym(library, name);
  check(found != nullptr, "--openblas: {} has no function {}; is it OpenBLAS?", file, name);
  return reinterpret_cast<Function>(found);
}

}  // namespace

std::string OpenBlas::best_core() {
  if (__builtin_cpu_supports("avx512bf16")) return "Cooperlake";
  return __builtin_cpu_supports("avx512f") ? "SkylakeX" : "";
}

std::unique_ptr<OpenBlas> OpenBlas::load(const std::string& file) {
  if (const std::string core = best_core(); !core.empty())
    setenv("OPENBLAS_CORETYPE", core.c_str(), 0);  // read when it is loaded; what the user has set counts
  void* library = nullptr;
  std::string loaded = file;
  if (!file.empty()) {
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr, "--openblas: {}", library ? "" : dlerror());
  }
  for (std::size_t i = 0; i < kBuilds.size() && !library; ++i) {
    loaded = kBuilds[i];
    library = dlopen(kBuilds[i], RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) return nullptr;
  using Config = const char* (*)();
  std::unique_ptr<OpenBlas> blas(new OpenBlas);  // the library stays loaded: its threads cannot be taken back
  blas->sgemm_ = symbol<Sgemm>(library, "cblas_sgemm", loaded);
  blas->set_threads_ = symbol<SetThreads>(library, "openblas_set_num_threads", loaded);
  blas->name_ = symbol<Config>(library, "openblas_get_config", loaded)();
  return blas;
}

void OpenBlas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, const BlasFactor& a, const BlasFactor& b,
                        float* c, bool add) const {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;  // of cblas.h
  const auto transpose = [](const BlasFactor& f) { return f.transposed ? kTransposed : kPlain; };
  const auto narrow = [](std::int64_t extent) { return static_cast<int>(extent); };
  sgemm_(kRowMajor, transpose(a), transpose(b), narrow(m), narrow(n), narrow(k), 1, a.data, narrow(a.stride), b.data,
         narrow(b.stride), add ? 1.0f : 0.0f, c, narrow(n));
}

}  // namespace grt
