// Scratch memory when there is none.
#include "ops/cpu/host/scratch.h"

#include <cstring>

#include "tests/support.h"

// AddressSanitizer asks this function for its options: an allocation that is too large fails as it does without it.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace grt::test {
namespace {

TEST_SUITE("ops") {
  TEST_CASE("scratch memory that could not grow is an error, and smaller requests succeed afterwards") {
    cpu::Scratch scratch;
    std::memset(scratch.get<char>(100), 1, 100);
    const std::string error = error_of([&] { scratch.get<char>(std::int64_t{1} << 60); });
    CHECK(error == "no memory for 1152921504606846976 bytes of scratch");
    char* memory = scratch.get<char>(1000);
    REQUIRE(memory != nullptr);
    std::memset(memory, 1, 1000);
    CHECK(scratch.get<char>(1000) == memory);
  }
}

}  // namespace
}  // namespace grt::test
