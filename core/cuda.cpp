#include "core/cuda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "core/error.h"

namespace grt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libgrt_cuda.so";

// What cuda/plugin.cpp defines.
struct Plugin {
  void (*unavailable)(std::string* reason);
  Device* (*open)(int ordinal);
};

const char* named_by_environment() {
  const char* const name = std::getenv("GRT_CUDA_LIBRARY");
  return name && *name ? name : nullptr;
}

// Never closed: what it made may live as long as the program.
void* open_library() {
  std::vector<std::string> places;
  if (const char* name = named_by_environment()) {
    places = {name};
  } else {
    std::error_code unknown;
    const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
    for (const fs::path& place :
         {program.parent_path() / kLibrary, program.parent_path().parent_path() / GRT_LIBDIR / kLibrary})
      if (fs::exists(place, unknown)) places.push_back(place.string());
    places.push_back(kLibrary);
  }
  std::string reason;
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = dlerror();
  }
  fail("the CUDA backend cannot be loaded: {}", reason);
}

template <class F>
F* function(void* library, const char* name) {
  void* const found = dlsym(library, name);
  check(found != nullptr, "the CUDA backend has no {}", name);
  return reinterpret_cast<F*>(found);
}

const Plugin& plugin() {
  static const Plugin loaded = [] {
    void* const library = open_library();
    const std::string interface = function<const char*()>(library, "grt_cuda_interface")();
    check(interface == GRT_INTERFACE, "the CUDA backend, {}, is of another build than the program ({}, not {})",
          kLibrary, interface, GRT_INTERFACE);
    return Plugin{function<void(std::string*)>(library, "grt_cuda_unavailable"),
                  function<Device*(int)>(library, "grt_cuda_open")};
  }();
  return loaded;
}

}  // namespace

std::unique_ptr<Device> open_cuda(int ordinal) { return std::unique_ptr<Device>(plugin().open(ordinal)); }

std::string cuda_unavailable() {
  if (!named_by_environment()) {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) return "no NVIDIA driver is installed";
    dlclose(driver);
  }
  try {
    std::string reason;
    plugin().unavailable(&reason);
    return reason;
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace grt
