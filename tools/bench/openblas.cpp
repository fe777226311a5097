#include "tools/bench/openblas.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "core/error.h"
#include "ops/cpu/host/level.h"

namespace grt {
namespace {

template <class Function>
Function symbol(void* library, const char* name, const std::string& file) {
  void* const found = dlsym(library, name);
  check(found != nullptr, "--openblas: {} has no function {}; is it OpenBLAS?", file, name);
  return reinterpret_cast<Function>(found);
}

// It stays loaded: its threads cannot be taken back.
void* open_library(const std::string& file) {
  const std::string core = openblas_core();
  if (!core.empty()) setenv("OPENBLAS_CORETYPE", core.c_str(), 0);  // what the user says is left
  return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

// Beside our own threads those of OpenMP rest between calls; the threads of the plain build go on turning.
std::span<const std::string> OpenBlas::debian_builds() {
  static const std::array<std::string, 3> builds = {"/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0",
                                                    "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
                                                    "libopenblas.so.0"};
  return builds;
}

std::unique_ptr<OpenBlas> OpenBlas::find(std::span<const std::string> files) {
  for (const std::string& file : files)
    if (void* const library = open_library(file)) return std::unique_ptr<OpenBlas>(new OpenBlas(library, file));
  return nullptr;
}

std::unique_ptr<OpenBlas> OpenBlas::load(const std::string& file) {
  void* const library = open_library(file);
  check(library != nullptr, "--openblas: {}", library ? "" : dlerror());
  return std::unique_ptr<OpenBlas>(new OpenBlas(library, file));
}

OpenBlas::OpenBlas(void* library, const std::string& file)
    : set_threads_(symbol<SetThreads>(library, "openblas_set_num_threads", file)),
      sgemm_(symbol<Sgemm>(library, "cblas_sgemm", file)) {
  name_ = symbol<const char* (*)()>(library, "openblas_get_config", file)();
}

void OpenBlas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, const BlasFactor& a, const BlasFactor& b,
                        float* c, bool add) const {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;  // of cblas.h
  const auto transpose = [](const BlasFactor& f) { return f.transposed ? kTransposed : kPlain; };
  const auto narrow = [](std::int64_t extent) { return static_cast<int>(extent); };
  sgemm_(kRowMajor, transpose(a), transpose(b), narrow(m), narrow(n), narrow(k), 1, a.data, narrow(a.stride), b.data,
         narrow(b.stride), add ? 1.0f : 0.0f, c, narrow(n));
}

std::string openblas_core() {
  const std::pair<cpu::Isa, const char*> cores[] = {
      {cpu::Isa::avx512bf16, "Cooperlake"}, {cpu::Isa::avx512, "SkylakeX"}, {cpu::Isa::avx2, "Haswell"}};
  for (const auto& [isa, core] : cores)
    if (cpu::runs_here(isa)) return core;
  return "";
}

std::string name_of(const OpenBlas* blas) {
  return blas ? blas->name() : "nothing, OpenBLAS is not installed (Debian: libopenblas0-openmp)";
}

}  // namespace grt
