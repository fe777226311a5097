// Tensors, their shapes, and the memory of a device.
#include "core/tensor.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support.h"

namespace grt::test {
namespace {

// A device of 4096 bytes.
struct SmallDevice final : Device {
  ~SmallDevice() override { release_idle(); }
  std::string name() const override { return "small"; }
  Kernels& kernels() override { return cpu().kernels(); }
  void sync() override {}
  void zero(void* p, std::size_t bytes) override { std::memset(p, 0, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void* system_alloc(std::size_t bytes) override {
    if (used + bytes > 4096) return nullptr;
    used += bytes;
    return std::malloc(bytes);
  }
  void system_free(void* p, std::size_t bytes) noexcept override {
    used -= bytes;
    std::free(p);
  }
  std::size_t used = 0;
};

Tensor counting(Shape shape) {
  std::vector<float> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  return Tensor::from<float>(shape, v, cpu());
}

TEST_SUITE("core") {
  TEST_CASE("a shape knows its extents from both ends") {
    const Shape s = {2, 3, 4};
    CHECK(s.rank() == 3);
    CHECK(s[0] == 2);
    CHECK(s[-1] == 4);
    CHECK(s.numel() == 24);
    CHECK(s.rows() == 6);
    CHECK(s.last() == 4);
    CHECK(s.with_last(5) == Shape{2, 3, 5});
    CHECK(s != Shape{2, 3, 4, 1});
    CHECK(Shape{}.numel() == 1);
    CHECK(Shape{}.rows() == 1);
    CHECK(Shape{3, 0}.numel() == 0);
    CHECK(fmt::format("{} {} {}", s, Shape{7}, Shape{}) == "(2, 3, 4) (7) ()");
    CHECK(error_of([] { Shape{1, 2, 3, 4, 5}; }) == "shape: rank 5 is above 4");
    CHECK(Shape{}.last() == 1);
    CHECK(error_of([] { Shape{}.with_last(2); }) == "shape: there is no extent -1 where there are 0");
    CHECK(error_of([&] { s[-4]; }) == "shape: there is no extent -4 where there are 3");
  }

  TEST_CASE("views share memory, clones do not") {
    const Tensor t = counting({2, 3, 4});
    CHECK(!t.shared());
    const Tensor v = t.view({6, 4}), r = t.rows(1, 2), e = t.range(22, {2});
    CHECK(t.shared());
    CHECK(v.raw() == t.raw());
    CHECK(r.shape() == Shape{2, 4});
    CHECK(values(r).front() == 4);
    CHECK(values(e) == std::vector<double>{22, 23});
    const Tensor c = t.clone();
    CHECK(same_bits(c, t));
    v.data<float>()[4] = -1;
    CHECK(values(t)[4] == -1);
    CHECK(values(r)[0] == -1);
    CHECK(values(c)[4] == 4);
    CHECK(t.rows(6, 0).numel() == 0);
  }

  TEST_CASE("a view outlives its tensor") {
    Tensor t = counting({4});
    const Tensor v = t.range(2, {2});
    t = Tensor();
    CHECK(!t);
    CHECK(values(v) == std::vector<double>{2, 3});
  }

  TEST_CASE("views that do not fit are refused with both shapes") {
    const Tensor t = counting({2, 3});
    CHECK(error_of([&] { t.view({7}); }) == "view: (7) has 7 elements, (2, 3) has 6");
    CHECK(error_of([&] { t.rows(1, 2); }) == "rows: 1..3 lie outside (2, 3)");
    CHECK(contains(error_of([&] { t.rows(-1, 1); }), "lie outside (2, 3)"));
    CHECK(error_of([&] { t.range(4, {3}); }) == "range: (3) from 4 on lies outside (2, 3)");
    const std::vector<float> three(3);
    CHECK(error_of([&] { Tensor::from<float>({2}, three, cpu()); }) == "tensor: 3 values cannot fill (2)");
  }

  TEST_CASE("zeros are zero in memory that was used before") {
    for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
      { counting({1000}); }
      const Tensor t = Tensor::zeros({500}, dtype, cpu());
      CHECK(t.dtype() == dtype);
      CHECK(t.bytes() == 500 * size_of(dtype));
      CHECK(values(t) == std::vector<double>(500));
    }
  }

  TEST_CASE("a step that repeats an earlier one asks the system for no memory and gets the same addresses") {
    const auto device = open_cpu();
    const auto step = [&] {
      const Tensor a = Tensor::empty({100, 3}, DType::f32, *device), b = Tensor::empty({7}, DType::f64, *device);
      return std::vector<void*>{a.raw(), b.raw()};
    };
    const auto first = step();
    const std::size_t calls = device->system_calls(), reserved = device->reserved();
    CHECK(calls == 2);
    CHECK(step() == first);
    CHECK(device->system_calls() == calls);
    CHECK(device->reserved() == reserved);
    CHECK(device->in_use() == 0);
    CHECK(device->peak() == reserved);
    device->reset_peak();
    CHECK(device->peak() == 0);
    device->release_idle();
    CHECK(device->reserved() == 0);
  }

  TEST_CASE("memory in use is counted while tensors live") {
    const auto device = open_cpu();
    Tensor a = Tensor::empty({1 << 20}, DType::f32, *device);
    const std::size_t with_a = device->in_use();
    CHECK(with_a >= a.bytes());
    const Tensor view = a.view({1 << 10, 1 << 10});
    CHECK(device->in_use() == with_a);
    a = Tensor();
    CHECK(device->in_use() == with_a);
  }

  TEST_CASE("a device gives up its idle blocks before it says that memory is out") {
    SmallDevice device;
    void* a = device.take(3000);  // rounded to 3072
    CHECK(contains(error_of([&] { device.take(4000); }), "small: out of memory: 4096 bytes wanted, 3072 in use"));
    CHECK(device.in_use() == 3072);
    device.give_back(a, 3000);
    void* b = device.take(4000);  // only fits where a's block was
    CHECK(device.reserved() == 4096);
    device.give_back(b, 4000);
    CHECK(device.in_use() == 0);
  }

  TEST_CASE("visit_real picks the scalar type and refuses the others") {
    const auto size = [](DType t) { return visit_real(t, []<class T>() { return sizeof(T); }); };
    CHECK(size(DType::f32) == 4);
    CHECK(size(DType::f64) == 8);
    CHECK(error_of([&] { size(DType::bf16); }) == "the CPU computes in f32 or f64, not bf16");
  }
}

}  // namespace
}  // namespace grt::test
