#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/cuda.h"
#include "cuda/self_test.h"
#include "cuda/staging.h"

namespace grt::cuda {

void cuda_check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // or the next check finds it again
  fail("cuda: {}: {}", what, cudaGetErrorString(e));
}

namespace {

class CudaGraph final : public Graph {
 public:
  // Takes what was kept on `stream`, where launch() will enqueue it.
  CudaGraph(cudaGraph_t kept, cudaStream_t stream) : stream_(stream) {
    const cudaError_t e = cudaGraphInstantiate(&graph_, kept, 0);
    cudaGraphDestroy(kept);
    cuda_check(e, "making a graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  void launch() override { cuda_check(cudaGraphLaunch(graph_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, DType products, bool keep_blocks) : Device(keep_blocks), ordinal_(ordinal) {
    cuda_check(cudaSetDevice(ordinal), "choosing the device");
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    kernels_ = std::make_unique<CudaKernels>(stream_, products);
  }
  ~CudaDevice() override {
    cudaStreamSynchronize(stream_);
    kernels_.reset();  // it holds memory
    release_idle();
    cudaStreamDestroy(stream_);
  }
  std::string name() const override { return fmt::format("cuda:{}", ordinal_); }
  Kernels& kernels() override { return *kernels_; }
  void sync() override {
    met_host();
    cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
  }
  void zero(void* p, std::size_t bytes) override {
    if (bytes) cuda_check(cudaMemsetAsync(p, 0, bytes, stream_), "setting memory to zero");
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    const bool from_host = on_host(from), to_host = on_host(to);
    if (for_graph() && (to_host || from_host)) {
      met_host();
      check(!keeping_, "cuda: a copy from or to the host is no part of a graph");
    }
    if (from_host && !to_host) return staging_.copy(to, from, bytes, stream_);
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying");
  }
  std::int64_t available() const override {
    std::size_t free = 0, all = 0;
    cuda_check(cudaMemGetInfo(&free, &all), "asking for free memory");
    return static_cast<std::int64_t>(free);
  }

 protected:
  void* system_alloc(std::size_t bytes) override {
    void* p = nullptr;
    const cudaError_t e = cudaMalloc(&p, std::max<std::size_t>(bytes, 1));  // of none it gives a null pointer
    if (e == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    cuda_check(e, "allocating memory");
    return p;
  }
  void system_free(void* p, std::size_t) noexcept override { cudaFree(p); }

  bool has_graphs() const override { return true; }
  void begin_graph() override {
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a graph");
    keeping_ = true;
  }
  std::unique_ptr<Graph> end_graph() override {
    keeping_ = false;
    cudaGraph_t kept = nullptr;
    cuda_check(cudaStreamEndCapture(stream_, &kept), "ending a graph");
    return std::make_unique<CudaGraph>(kept, stream_);
  }

 private:
  static bool on_host(const void* p) {
    cudaPointerAttributes attributes{};
    cuda_check(cudaPointerGetAttributes(&attributes, p), "asking where memory lies");
    return attributes.type != cudaMemoryTypeDevice;
  }

  int ordinal_;
  cudaStream_t stream_ = nullptr;
  bool keeping_ = false;  // work becomes part of a graph
  Staging staging_;
  std::unique_ptr<CudaKernels> kernels_;
};

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

}  // namespace

std::string unavailable() {
  int driver = 0, runtime = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);  // succeeds with 0 where there is no driver
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaSuccess && count > 0) {
    for (int ordinal = 0; ordinal < count; ++ordinal)
      if (too_old(ordinal).empty()) return {};
    return too_old(0);
  }
  cudaGetLastError();
  if (driver == 0) return "no NVIDIA driver is installed";
  if (e == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver serves CUDA {}, this build needs {}", version(driver), version(runtime));
  if (e == cudaErrorNoDevice || e == cudaSuccess) return "the NVIDIA driver sees no device";
  return cudaGetErrorString(e);
}

int devices() {
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "counting the devices");
  return count;
}

cudaStream_t stream_of(Device& device) { return static_cast<CudaKernels&>(device.kernels()).stream; }

std::unique_ptr<Device> open(int ordinal, DType products, bool keep_blocks) {
  check(products == DType::f32 || products == DType::bf16, "products are f32 or bf16, not {}", name_of(products));
  const std::string reason = unavailable();
  check(reason.empty(), "no CUDA device can be opened: {}", reason);
  const int count = devices();
  check(0 <= ordinal && ordinal < count, "there is no cuda:{}; the devices are cuda:0..{}", ordinal, count - 1);
  const std::string age = too_old(ordinal);
  check(age.empty(), "{}", age);
  auto device = std::make_unique<CudaDevice>(ordinal, products, keep_blocks);
  self_test(*device, ordinal);
  return device;
}

}  // namespace grt::cuda
