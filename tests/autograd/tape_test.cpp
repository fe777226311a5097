// The tape: what is recorded, what a step keeps alive, where gradients are stored, added and shared.
#include "autograd/tape.h"

#include <optional>
#include <string>

#include "ops/ops.h"
#include "tests/support.h"

namespace grt {
namespace {

using test::cpu;
using test::randn;

Tensor numbers(const std::vector<double>& values) {
  return Tensor::from<double>({static_cast<std::int64_t>(values.size())}, values, cpu());
}

// The gradients that f leaves in its leaves, with a seed of ones.
template <class F>
void differentiate(F&& f) {
  Tape tape;
  Var out;
  {
    Record on(&tape);
    out = f();
  }
  std::vector<double> ones(out.value().numel(), 1.0);
  tape.backward(out, Tensor::from<double>(out.shape(), ones, cpu()));
  CHECK(tape.size() == 0);
}

std::vector<double> grad(const Var& v) { return test::values(v.grad()); }

// sum and difference of two values: an operation with two outputs.
std::vector<Var> sum_and_difference(const Var& a, const Var& b, int* calls) {
  Kernels& k = a.kernels();
  const Tensor sum = Tensor::like(a.value()), difference = Tensor::like(a.value());
  k.add({sum}, a.value(), b.value());
  k.multiply({difference}, b.value(), -1);
  k.copy({difference, true}, a.value());
  return record("sum_and_difference", {sum, difference}, {a, b},
                [&k, da = a.sink(), db = b.sink(), calls](const std::vector<Tensor>& douts) {
                  ++*calls;
                  if (douts[0]) k.copy(da.into(), douts[0]), k.copy(db.into(), douts[0]);
                  if (douts[1]) k.copy(da.into(), douts[1]), k.multiply(db.into(), douts[1], -1);
                });
}

TEST_SUITE("autograd") {
  TEST_CASE("without a tape nothing is recorded and nothing is kept") {
    const Var x = Var::leaf(randn({8, 8}, 1));
    const std::size_t before = cpu().in_use();
    {
      const Var y = silu(x);
      CHECK_FALSE(y.wants_grad());
      CHECK(cpu().in_use() - before == 512);  // y alone
    }
    CHECK(cpu().in_use() == before);
  }

  TEST_CASE("a tape records only what depends on a value that wants a gradient") {
    Tape tape;
    Record on(&tape);
    const Var constant(randn({3}, 1)), wanted = Var::leaf(randn({3}, 2));
    const Var y = scale(constant, 2);
    CHECK(tape.size() == 0);
    CHECK_FALSE(y.wants_grad());
    const Var z = y + wanted;
    CHECK(tape.size() == 1);
    CHECK(z.wants_grad());
  }

  TEST_CASE("Record is in force until it dies, on its own thread's tape alone") {
    Tape outer, inner;
    const Var x = Var::leaf(numbers({1}));
    {
      Record on(&outer);
      {
        Record nested(&inner);
        scale(x, 2);
        Record off(nullptr);
        scale(x, 2);
      }
      scale(x, 2), scale(x, 2);
    }
    scale(x, 2);
    CHECK(inner.size() == 1);
    CHECK(outer.size() == 2);
  }

  TEST_CASE("a value used twice gets the sum of its gradients") {
    const Var x = Var::leaf(numbers({1, 2}));
    differentiate([&] { return scale(x, 3) + scale(x, 4); });
    CHECK(grad(x) == std::vector<double>{7, 7});
    const Var y = Var::leaf(numbers({1, 2}));
    differentiate([&] { return y + y; });
    CHECK(grad(y) == std::vector<double>{2, 2});
    const Var z = Var::leaf(numbers({1, 2}));
    differentiate([&] { return (z + z) + (z + z); });
    CHECK(grad(z) == std::vector<double>{4, 4});
  }

  TEST_CASE("equal values keep gradients of their own, and so do leaves that share memory") {
    const Tensor t = numbers({1, 2});
    const Var a = Var::leaf(t), b = Var::leaf(t);
    differentiate([&] { return scale(a, 3) + scale(b, 5); });
    CHECK(grad(a) == std::vector<double>{3, 3});
    CHECK(grad(b) == std::vector<double>{5, 5});
  }

  TEST_CASE("a gradient that two inputs share is not written through") {
    const Var a = Var::leaf(numbers({1, 2})), b = Var::leaf(numbers({3, 4}));
    // The add hands one gradient to both; the scale, recorded first, then adds to a's.
    differentiate([&] {
      const Var early = scale(a, 10);
      return early + (a + b);
    });
    CHECK(grad(a) == std::vector<double>{11, 11});
    CHECK(grad(b) == std::vector<double>{1, 1});
  }

  TEST_CASE("a step that is given one value twice adds both gradients up in one place") {
    const Var x = Var::leaf(numbers({1, 2}));
    Kernels& k = x.kernels();
    differentiate([&] {
      return record("twice", x.value().clone(), {x, x}, [&k, da = x.sink(), db = x.sink()](const Tensor& dy) {
        const Into first = da.into(), second = db.into();  // as a kernel with two outputs holds them
        CHECK(first.to.raw() == second.to.raw());
        k.multiply(first, dy, 3);
        k.multiply(second, dy, 10);
      });
    });
    CHECK(grad(x) == std::vector<double>{13, 13});
  }

  TEST_CASE("backward does not change the seed it is given") {
    const Var a = Var::leaf(numbers({1, 2}));
    const Tensor seed = numbers({1, 1});
    Tape tape;
    Var out;
    {
      Record on(&tape);
      out = scale(a, 10) + a;
    }
    tape.backward(out, seed);
    CHECK(grad(a) == std::vector<double>{11, 11});
    CHECK(test::values(seed) == std::vector<double>{1, 1});
  }

  TEST_CASE("a view shares the gradient of what it views") {
    const Var x = Var::leaf(numbers({1, 2, 3, 4}));
    differentiate([&] { return scale(x.view({2, 2}), 3) + x.view({2, 2}); });
    CHECK(x.grad().shape().numel() == 4);
    CHECK(grad(x) == std::vector<double>{4, 4, 4, 4});
  }

  TEST_CASE("a step keeps what it saves and nothing else") {
    const std::int64_t n = 4096;
    const std::size_t bytes = n * sizeof(double);
    const Var x = Var::leaf(randn({n}, 1)), other = Var::leaf(randn({n}, 2));
    const auto kept = [&](auto&& f) {
      Tape tape;
      Record on(&tape);
      const std::size_t before = cpu().in_use();
      { const Var y = f(); }
      return cpu().in_use() - before;
    };
    CHECK(kept([&] { return scale(x, 3); }) == 0);  // neither its input nor its output
    CHECK(kept([&] { return x + other; }) == 0);
    CHECK(kept([&] { return add_noise(x, 0.1f, {}); }) == 0);
    CHECK(kept([&] { return concat(x, other); }) == 0);
    CHECK(kept([&] { return silu(scale(x, 3)); }) == bytes);  // silu's input
    CHECK(kept([&] { return silu(scale(x, 3) + other); }) == bytes);
    CHECK(kept([&] { return checkpoint([x] { return silu(scale(silu(x), 3)); }); }) == 0);
  }

  TEST_CASE("backward frees what a step saved as soon as it has run") {
    const std::int64_t n = 4096;
    const std::size_t bytes = n * sizeof(double);
    const Var x = Var::leaf(randn({n}, 1));
    Tape tape;
    const std::size_t before = cpu().in_use();
    std::optional<Var> out;
    {
      Record on(&tape);
      Var y = x;
      for (int i = 0; i < 10; ++i) y = silu(scale(y, 2));
      out = y;
    }
    const Tensor seed = randn({n}, 3);
    const std::size_t recorded = cpu().in_use();
    CHECK(recorded - before == 12 * bytes);  // ten saved inputs, the output, the seed
    cpu().reset_peak();
    tape.backward(*out, seed);
    CHECK(cpu().peak() <= recorded + 2 * bytes);  // a gradient comes when a saved input goes
    out.reset();
    CHECK(cpu().in_use() - before == 2 * bytes);  // the seed and x's gradient
  }

  TEST_CASE("an operation with two outputs gets an empty gradient where none arrived") {
    int calls = 0;
    const Var a = Var::leaf(numbers({5, 6})), b = Var::leaf(numbers({1, 2}));
    differentiate([&] {
      const std::vector<Var> both = sum_and_difference(a, b, &calls);
      return scale(both[1], 3);
    });
    CHECK(grad(a) == std::vector<double>{3, 3});
    CHECK(grad(b) == std::vector<double>{-3, -3});
    a.clear_grad(), b.clear_grad();
    differentiate([&] {
      const std::vector<Var> both = sum_and_difference(a, b, &calls);
      return scale(both[1], 3) + scale(both[0], 10);
    });
    CHECK(grad(a) == std::vector<double>{13, 13});
    CHECK(grad(b) == std::vector<double>{7, 7});
    CHECK(calls == 2);
    a.clear_grad();
    differentiate([&] {
      sum_and_difference(a, b, &calls);
      return scale(a, 2);
    });
    CHECK(calls == 2);  // nothing arrived: the step is passed over
    CHECK(grad(a) == std::vector<double>{2, 2});
  }

  TEST_CASE("a parameter's gradient is stored first, added to later, and stored again after clear_grad") {
    const Tensor memory = numbers({99, 99});  // what an earlier step left
    const Var w = Var::parameter(numbers({1, 2}), memory);
    CHECK_FALSE(w.has_grad());
    differentiate([&] { return scale(w, 3); });
    CHECK(test::values(memory) == std::vector<double>{3, 3});
    differentiate([&] { return scale(w, 4) + w; });
    CHECK(test::values(memory) == std::vector<double>{8, 8});
    CHECK(w.grad().raw() == memory.raw());
    w.clear_grad();
    CHECK_FALSE(w.has_grad());
    differentiate([&] { return w + w; });
    CHECK(test::values(memory) == std::vector<double>{2, 2});
  }

  TEST_CASE("a parameter written in parts is zeroed before its first part") {
    const Tensor memory = Tensor::from<double>({2, 3}, std::vector<double>(6, 99), cpu());
    const Var w = Var::parameter(randn({2, 3}, 1), memory);
    const Var x(numbers({1, 2}).view({1, 2}));
    differentiate([&] { return linear_columns(x, w, 1); });
    CHECK(test::values(memory) == std::vector<double>{0, 1, 2, 0, 1, 2});
    differentiate([&] { return linear_columns(x, w, 0); });
    CHECK(test::values(memory) == std::vector<double>{1, 3, 2, 1, 3, 2});
  }

  TEST_CASE("checkpoint() runs its block once forward and once backward, and records one step") {
    int runs = 0;
    const Var x = Var::leaf(randn({3}, 1));
    Tape tape;
    Var out;
    {
      Record on(&tape);
      out = checkpoint([&runs, x] {
        ++runs;
        return silu(scale(silu(x), 2));
      });
    }
    CHECK(runs == 1);
    CHECK(tape.size() == 1);
    tape.backward(out, randn({3}, 2));
    CHECK(runs == 2);

    const Var y = Var::leaf(x.value());
    Tape plain;
    {
      Record on(&plain);
      out = silu(scale(silu(y), 2));
    }
    plain.backward(out, randn({3}, 2));
    CHECK(test::same_bits(x.grad(), y.grad()));
  }

  TEST_CASE("what backward begins at keeps its own gradient: in its place, or there is an error") {
    const Tensor memory = numbers({99, 99});
    const Var w = Var::parameter(numbers({1, 2}), memory);
    Tape tape;
    tape.backward(w, numbers({3, 4}));
    CHECK(w.grad().raw() == memory.raw());
    CHECK(test::values(memory) == std::vector<double>{3, 4});
    CHECK(test::error_of([&] {
            tape.backward(w, numbers({3, 4}));
          }) == "backward: the output (2) has a gradient already");

    const Var x = Var::leaf(numbers({1, 2}));
    CHECK(test::contains(test::error_of([&] { differentiate([&] { return checkpoint([x] { return x; }) + x; }); }),
                         "has a gradient already"));
    CHECK(grad(x) == std::vector<double>{1, 1});
  }

  TEST_CASE("an observer sees operations until it dies, and then the one before it does") {
    std::string seen;
    const auto see = [&](const std::string& who) {
      return [&seen, who](std::string_view op, const Tensor&) { seen += fmt::format("{}:{} ", who, op); };
    };
    const Var x(numbers({1, 2}));
    {
      const Observe outer(see("outer"));
      scale(x, 2);
      {
        const Observe inner(see("inner"));
        silu(x);
      }
      x + x;
    }
    scale(x, 2);
    CHECK(seen == "outer:scale inner:silu outer:add ");
  }

  TEST_CASE("noise under checkpoint() is drawn again, not anew") {
    const auto gradient = [](bool recompute) {
      const Var x = Var::leaf(randn({30}, 1));
      const auto block = [x] { return silu(add_noise(x, 0.5f, {1, 2, 3})); };
      differentiate([&] { return recompute ? checkpoint(block) : block(); });
      return x.grad();
    };
    CHECK(test::same_bits(gradient(true), gradient(false)));
  }

  TEST_CASE("misuse is refused with a reason") {
    Tape tape;
    const Var constant(numbers({1})), leaf = Var::leaf(numbers({1, 2}));
    CHECK(test::error_of([&] { tape.backward(constant, numbers({1})); }) ==
          "backward: the output depends on nothing that wants a gradient");
    CHECK(test::error_of([&] { tape.backward(leaf, numbers({1})); }) == "backward: the seed is (1), the output (2)");
    CHECK(test::error_of([&] { tape.backward(leaf, randn({2}, 1, DType::f32)); }) ==
          "backward: the seed is f32, the output f64");
    CHECK(test::error_of([&] {
            Var::parameter(numbers({1}), numbers({1, 2}));
          }) == "parameter: value (1) and gradient (2) differ");
    CHECK(test::contains(test::error_of([&] { constant.sink().adopt(numbers({1})); }), "adopt:"));
  }
}

}  // namespace
}  // namespace grt
