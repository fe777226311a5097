// The gradient check is itself checked: it must pass what is right and catch what is wrong, however well hidden.
#include "autograd/gradcheck.h"

#include <cmath>
#include <limits>

#include "ops/ops.h"
#include "tests/support.h"

namespace grt {
namespace {

using test::randn;

Var leaf(Shape shape, std::uint32_t site) { return Var::leaf(randn(shape, site)); }

// The value of `right` at the inputs, with the derivative of `recorded`: a mutant when the two differ.
template <class Right, class Recorded>
Var with_derivative_of(Right right, Recorded recorded) {
  const Var y = recorded();
  Record off(nullptr);
  const Var value = right();
  y.device().copy(y.value().raw(), value.value().raw(), y.value().bytes());
  return y;
}

// The identity, whose derivative is multiplied by `factor`.
Var wrong_by(const Var& x, float factor) {
  Kernels& k = x.kernels();
  return record("wrong_by", x.value().clone(), {x},
                [&k, dx = x.sink(), factor](const Tensor& dy) { k.multiply(dx.into(), dy, factor); });
}

// softmax over the last extent; with `complete` false the derivative p dy alone, without - p sum(p dy).
Var softmax(const Var& x, bool complete) {
  const Tensor p = Tensor::like(x.value());
  const std::int64_t width = x.shape().last();
  for (std::int64_t r = 0; r < x.shape().rows(); ++r) {
    const double* in = x.value().data<double>() + r * width;
    double* out = p.data<double>() + r * width;
    double total = 0;
    for (std::int64_t i = 0; i < width; ++i) total += out[i] = std::exp(in[i]);
    for (std::int64_t i = 0; i < width; ++i) out[i] /= total;
  }
  return record("softmax", p, {x}, [dx = x.sink(), p, complete](const Tensor& dy) {
    const Into into = dx.into();
    const std::int64_t width = p.shape().last();
    for (std::int64_t r = 0; r < p.shape().rows(); ++r) {
      const double *pr = p.data<double>() + r * width, *d = dy.data<double>() + r * width;
      double mean = 0;
      for (std::int64_t i = 0; complete && i < width; ++i) mean += pr[i] * d[i];
      for (std::int64_t i = 0; i < width; ++i) into.to.data<double>()[r * width + i] = pr[i] * (d[i] - mean);
    }
  });
}

// Every mutation of the derivative of f(x, ...) with respect to its first input, scaled by `factor`, is caught.
template <class F>
double worst_with_factor(F&& f, std::vector<Var> inputs, float factor) {
  const Var x = inputs[0];
  return gradcheck(
             [&] {
               std::vector<Var> mutated = inputs;
               mutated[0] = wrong_by(x, factor);
               return f(mutated);
             },
             {{"x", x}})
      .worst;
}

TEST_SUITE("autograd") {
  TEST_CASE("a right derivative passes, element by element and along directions") {
    for (const Shape& shape : {Shape{3, 4}, Shape{40, 30}}) {
      const Var x = leaf(shape, 1);
      CHECK(gradcheck([&] { return silu(x); }, {{"x", x}}).worst < 1e-8);
      CHECK(gradcheck([&] { return softmax(x, true); }, {{"x", x}}).worst < 1e-7);
    }
  }

  TEST_CASE("a sign flipped, a share lost and a factor of 1.01 are caught in every kind of operation") {
    const Tensor targets = Tensor::from<std::int32_t>({4}, std::vector<std::int32_t>{0, 2, 1, 4}, test::cpu());
    using Inputs = const std::vector<Var>&;
    const std::vector<std::pair<std::function<Var(Inputs)>, std::vector<Var>>> operations = {
        {[](Inputs v) { return v[0] + v[1]; }, {leaf({3, 4}, 1), leaf({3, 4}, 2)}},
        {[](Inputs v) { return gelu(v[0], Gelu::erf); }, {leaf({3, 4}, 3)}},
        {[](Inputs v) { return linear(v[0], v[1]); }, {leaf({3, 4}, 4), leaf({5, 4}, 5)}},
        {[](Inputs v) { return linear(v[1], v[0]); }, {leaf({5, 40}, 6), leaf({3, 40}, 7)}},  // along directions
        {[](Inputs v) { return layernorm(v[0], v[1]); }, {leaf({3, 4}, 8), leaf({4}, 9)}},
        {[](Inputs v) { return attention(v[0], 2); }, {leaf({1, 5, 12}, 10)}},
        {[](Inputs v) {
           return gate_mix(v[0], v[1], v[2], {1, 0, {}});
         },
         {leaf({3, 4}, 11), leaf({3, 4}, 12), leaf({3, 4}, 13)}},
        {[&](Inputs v) { return cross_entropy(v[0], v[1], targets, 5); }, {leaf({4, 6}, 14), leaf({5, 6}, 15)}},
    };
    for (std::size_t i = 0; i < operations.size(); ++i) {
      CAPTURE(i);
      const auto& [f, inputs] = operations[i];
      CHECK(worst_with_factor(f, inputs, 1) < 1e-6);
      CHECK(worst_with_factor(f, inputs, -1) > 1.9);
      CHECK(worst_with_factor(f, inputs, 1.01f) > 0.009);
      CHECK(worst_with_factor(f, inputs, 1 + 1e-4f) > 9e-5);
      CHECK(worst_with_factor(f, inputs, 0) == 1);
    }
  }

  TEST_CASE("a derivative of a neighbouring function is caught") {
    const Var x = leaf({3, 4}, 1), w = leaf({4}, 2), h = leaf({3, 4}, 3), o = leaf({3, 4}, 4);
    const auto worst = [&](const std::function<Var()>& right, const std::function<Var()>& wrong) {
      return gradcheck([&] { return with_derivative_of(right, wrong); }, {{"x", x}}).worst;
    };
    CHECK(worst([&] { return gelu(x, Gelu::erf); }, [&] { return gelu(x, Gelu::erf); }) < 1e-7);
    CHECK(worst([&] { return gelu(x, Gelu::erf); }, [&] { return gelu(x, Gelu::tanh); }) > 1e-5);
    CHECK(worst(
              [&] {
                return gate_mix(x, h, o, {1, 0, {}});
              },
              [&] {
                return gate_mix(x, h, o, {0.9f, 0, {}});
              }) > 1e-2);
    CHECK(worst(
              [&] {
                return gate_mix(x, h, o, {1, 0.3f, {1, 2, 3}});
              },
              [&] {
                return gate_mix(x, h, o, {1, 0.3f, {1, 2, 4}});
              }) > 1e-3);  // another draw of the noise
    CHECK(worst([&] { return layernorm(x, w); }, [&] { return layernorm(x, w, {}, 1e-2f); }) > 1e-3);
  }

  TEST_CASE("a dropped term that cancels in a sum over the row is caught") {
    const Var x = leaf({3, 5}, 1);
    // The sum of a softmax is 1 whatever x is: as a loss it has no gradient at all, so it cannot tell these two apart
    // from others; the projection on random weights can.
    CHECK(gradcheck([&] { return softmax(x, true); }, {{"x", x}}).worst < 1e-7);
    CHECK(gradcheck([&] { return softmax(x, false); }, {{"x", x}}).worst > 0.1);
  }

  TEST_CASE("one wrong element is found and named") {
    const Var x = leaf({2, 3}, 1), w = leaf({4}, 2);
    const auto f = [&] {
      Kernels& k = x.kernels();
      const Tensor y = Tensor::like(x.value());
      k.silu(y, x.value());
      const Var out = record("bad_silu", y, {x}, [&k, dx = x.sink(), x = x.value()](const Tensor& dy) {
        const Into into = dx.into();
        k.silu_backward(into, dy, x);
        into.to.data<double>()[4] *= 1.001;
      });
      return out;
    };
    const GradReport report = gradcheck(f, {{"w", w}, {"the weight", x}});
    CHECK(report.where == "the weight, element 4");
    CHECK(report.worst == doctest::Approx(0.001).epsilon(0.01));
  }

  TEST_CASE("a gradient that never arrives is caught") {
    const Var x = leaf({2, 3}, 1);
    CHECK(gradcheck([&] { return scale(Var(x.value()), 2) + scale(x, 1e-30f); }, {{"x", x}}).worst == 1);
  }

  TEST_CASE("a gradient that is not a number is the worst of all") {
    const Var x = leaf({2, 3}, 1);
    const GradReport report =
        gradcheck([&] { return wrong_by(x, std::numeric_limits<float>::quiet_NaN()); }, {{"x", x}});
    CHECK(std::isnan(report.worst));
    CHECK_FALSE(report.worst <= 1e-6);
  }

  TEST_CASE("a NaN stays the worst, whatever is right after it") {
    const Var x = leaf({2, 3}, 1), right = leaf({2}, 2);
    const auto half_right = [&] {
      return record("half_right", x.value().clone(), {x}, [dx = x.sink()](const Tensor& dy) {
        const Into into = dx.into();
        into.to.device().copy(into.to.raw(), dy.raw(), dy.bytes());
        into.to.data<double>()[2] = std::numeric_limits<double>::quiet_NaN();
      });
    };
    const GradReport report = gradcheck(half_right, {{"x", x}, {"right", right}});
    CHECK(std::isnan(report.worst));
    CHECK(test::contains(report.where, "x, element"));
  }

  TEST_CASE("the check leaves the variables as they were, and takes f64 alone") {
    const Var x = leaf({2, 3}, 1);
    const Tensor before = x.value().clone();
    gradcheck([&] { return silu(x); }, {{"x", x}});
    CHECK(test::same_bits(x.value(), before));
    const Var narrow = Var::leaf(randn({2}, 1, DType::f32));
    CHECK(test::error_of([&] {
            gradcheck([&] { return silu(narrow); }, {{"narrow", narrow}});
          }) == "gradcheck: narrow must be f64, not f32");
  }
}

}  // namespace
}  // namespace grt
