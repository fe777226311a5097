// A device that has no memory left for its own records. `new` of the whole test program is replaced for that: it fails
// where a test says so.
#include "core/device.h"

#include <cstdlib>
#include <new>

#include "tests/support.h"

namespace {

thread_local bool no_memory = false;

void* allocate(std::size_t bytes) noexcept { return no_memory ? nullptr : std::malloc(bytes == 0 ? 1 : bytes); }

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* p = allocate(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace grt::test {
namespace {

TEST_SUITE("core") {
  TEST_CASE("a block that cannot be remembered goes back to the system") {
    const std::unique_ptr<Device> device = open_cpu();
    void* block = device->take(1000);
    CHECK(device->in_use() == 1024);
    CHECK(device->reserved() == 1024);
    no_memory = true;
    device->give_back(block, 1000);
    no_memory = false;
    CHECK(device->in_use() == 0);
    CHECK(device->reserved() == 0);

    block = device->take(1000);
    device->give_back(block, 1000);
    CHECK(device->reserved() == 1024);
    CHECK(device->take(1000) == block);
    device->give_back(block, 1000);
  }
}

}  // namespace
}  // namespace grt::test
