#include "core/cuda.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/plugin.h"

namespace grt {
namespace {

// What cuda/plugin.cpp defines.
struct Backend {
  void (*unavailable)(std::string* reason);
  Device* (*open)(int ordinal, DType products);
};

const Backend& backend() {
  static const Backend loaded = [] {
    const Plugin plugin("cuda");
    const std::string interface = plugin.function<const char*()>("grt_cuda_interface")();
    check(interface == GRT_INTERFACE, "libgrt_cuda.so is of another build than the program ({}, not {})", interface,
          GRT_INTERFACE);
    return Backend{plugin.function<void(std::string*)>("grt_cuda_unavailable"),
                   plugin.function<Device*(int, DType)>("grt_cuda_open")};
  }();
  return loaded;
}

}  // namespace

std::unique_ptr<Device> open_cuda(int ordinal, DType products) {
  return std::unique_ptr<Device>(backend().open(ordinal, products));
}

std::string cuda_unavailable() {
  if (named_plugin("cuda").empty()) {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) return "no NVIDIA driver is installed";
    dlclose(driver);
  }
  try {
    std::string reason;
    backend().unavailable(&reason);
    return reason;
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace grt
