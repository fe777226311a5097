// The CPU as a device: memory in cache lines or huge pages, and work that is done when a call returns.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "core/device.h"
#include "core/threads.h"
#include "ops/cpu/host/level.h"

namespace grt {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::int64_t kBytesPerChunk = 4 << 20;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(DType products) : kernels_(cpu::level().kernels(products)) {}
  ~CpuDevice() override {
    kernels_.reset();  // they may hold memory
    release_idle();
  }
  std::string name() const override { return "cpu (" + cpu_level() + ")"; }
  Kernels& kernels() override { return *kernels_; }
  void sync() override {}

  // On all threads: the first touch of a page costs more than its content.
  void zero(void* p, std::size_t bytes) override {
    parallel_for(static_cast<std::int64_t>(bytes), kBytesPerChunk, [p](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<char*>(p) + begin, 0, static_cast<std::size_t>(end - begin));
    });
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    parallel_for(static_cast<std::int64_t>(bytes), kBytesPerChunk, [to, from](std::int64_t begin, std::int64_t end) {
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  static_cast<std::size_t>(end - begin));
    });
  }

 protected:
  void* system_alloc(std::size_t bytes) override {
    const bool huge = bytes >= kHugePage;
    void* p = nullptr;
    if (posix_memalign(&p, huge ? kHugePage : 64, bytes) != 0) return nullptr;
    if (huge) madvise(p, bytes, MADV_HUGEPAGE);  // a wish; without it pages are small and all else is the same
    return p;
  }
  void system_free(void* p, std::size_t) noexcept override { std::free(p); }

 private:
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace

std::unique_ptr<Device> open_cpu(DType products) {
  check(products == DType::f32 || products == DType::bf16, "open_cpu: products are f32 or bf16, not {}",
        name_of(products));
  return std::make_unique<CpuDevice>(products);
}

}  // namespace grt
