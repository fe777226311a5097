// In every build: nothing of CUDA is included here, and the opened libraries must be of the same build (GRT_INTERFACE).
#include "core/cuda.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/plugin.h"

namespace grt {
namespace {

Plugin of_this_build(const std::string& part, const std::string& cure = "") {
  Plugin plugin(part, cure);
  const std::string interface = plugin.function<const char*()>(("grt_" + part + "_interface").c_str())();
  check(interface == GRT_INTERFACE, "libgrt_{}.so is of another build than the program ({}, not {})", part, interface,
        GRT_INTERFACE);
  return plugin;
}

// What cuda/plugin.cpp defines.
struct Backend {
  void (*unavailable)(std::string* reason);
  Device* (*open)(int ordinal, DType products, bool keep_blocks);
  int (*devices)();
  void* (*stream)(Device*);
};

const Backend& backend() {
  static const Backend loaded = [] {
    const Plugin plugin = of_this_build("cuda");
    return Backend{plugin.function<void(std::string*)>("grt_cuda_unavailable"),
                   plugin.function<Device*(int, DType, bool)>("grt_cuda_open"),
                   plugin.function<int()>("grt_cuda_devices"), plugin.function<void*(Device*)>("grt_cuda_stream")};
  }();
  return loaded;
}

// What cuda/nccl/comm.cpp defines.
using OpenNccl = Comm*(Comm* ranks, Device* device, void* stream);

OpenNccl* nccl() {
  static OpenNccl* const loaded =
      of_this_build("nccl", "ranks on GPUs need a build that found NCCL; --device cpu does not")
          .function<OpenNccl>("grt_nccl_open");
  return loaded;
}

}  // namespace

std::unique_ptr<Device> open_cuda(int ordinal, DType products) {
  return std::unique_ptr<Device>(backend().open(ordinal, products, true));
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

int cuda_devices() { return backend().devices(); }

std::unique_ptr<Comm> open_nccl(Comm& ranks, Device& device) {
  return std::unique_ptr<Comm>(nccl()(&ranks, &device, backend().stream(&device)));
}

std::string nccl_unavailable() {
  try {
    nccl();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace grt
