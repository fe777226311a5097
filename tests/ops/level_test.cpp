// Which instruction set the CPU backend computes with.
#include "ops/cpu/host/level.h"

#include "tests/support.h"

namespace grt {
namespace {

TEST_SUITE("ops") {
  TEST_CASE("the highest level that runs and pays here is taken unless another is named") {
    cpu::Isa last = cpu::Isa::portable;
    CHECK(cpu::runs_here(cpu::built().front()));
    for (const cpu::Isa isa : cpu::built()) {
      CHECK(cpu::level_of(isa).isa == isa);
      if (!cpu::runs_here(isa)) {
        CHECK(test::contains(test::error_of([&] { cpu::choose(cpu::name_of(isa)); }), "not \"" + cpu::name_of(isa) + "\""));
        continue;
      }
      CHECK(cpu::choose(cpu::name_of(isa)) == isa);
      if (cpu::pays_here(isa)) last = isa;
    }
    CHECK(cpu::choose("") == last);
  }

  TEST_CASE("a level that does not exist is an error that lists those that do") {
    const std::string error = test::error_of([] { cpu::choose("AVX2"); });
    CHECK(error.starts_with("GRT_ISA: this program on this CPU runs portable"));
    CHECK(error.ends_with(", not \"AVX2\""));
  }

  TEST_CASE("products are f32 or bf16 and nothing else") {
    CHECK(test::error_of([] { open_cpu(DType::f64); }) == "open_cpu: products are f32 or bf16, not f64");
  }
}

}  // namespace
}  // namespace grt
