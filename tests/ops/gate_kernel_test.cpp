// The gated update against plain loops in double.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

struct Result {
  Values y, dz, dh, d_o;
};

Result reference(const Values& z, const Values& h, const Values& o, const Values& dy, std::size_t width,
                 const GateNoise& noise) {
  Result out;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double draw = static_cast<double>(random_normal(noise.key, i / width));
    const double s = z[i] / static_cast<double>(noise.tau) + static_cast<double>(noise.sigma) * draw;
    const double g = 1 / (1 + std::exp(-s)), rest = 1 / (1 + std::exp(s));
    out.y.push_back(g * h[i] + rest * o[i]);
    out.dz.push_back(dy[i] * (h[i] - o[i]) * g * rest / static_cast<double>(noise.tau));
    out.dh.push_back(dy[i] * g);
    out.d_o.push_back(dy[i] * rest);
  }
  return out;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("gate_mix and its gradients are what their formulas say, with one draw for each row") {
    for (DType type : kReals)
      for (const GateNoise& noise : {GateNoise{1, 0, {}}, GateNoise{0.5f, 0.25f, {99, 5, 2}}})
        for (const Shape& shape : {Shape{1, 1}, Shape{2, 19, 33}, Shape{40, 640}}) {
          const Tensor z = randn(shape, 1, type), h = randn(shape, 2, type), o = randn(shape, 3, type);
          const Tensor dy = randn(shape, 4, type);
          const Result expected =
              reference(values(z), values(h), values(o), values(dy), static_cast<std::size_t>(shape.last()), noise);
          Kernels& k = kernels();
          const Values y = written(shape, type, [&](const Tensor& to) { k.gate_mix(to, z, h, o, noise); });
          CHECK(relative_error(y, expected.y) < tolerance(type));
          check_into(expected.dz, shape, type,
                     [&](const Into& to) { k.gate_mix_backward(to, Into{}, Into{}, dy, z, h, o, noise); });
          check_into(expected.dh, shape, type,
                     [&](const Into& to) { k.gate_mix_backward(Into{}, to, Into{}, dy, z, h, o, noise); });
          check_into(expected.d_o, shape, type,
                     [&](const Into& to) { k.gate_mix_backward(Into{}, Into{}, to, dy, z, h, o, noise); });
        }
  }

  TEST_CASE("a nearly closed side of the gate keeps its relative accuracy") {
    const Values at = {-60, -20, 20, 60, 200, -200};
    const Tensor z = tensor({1, 6}, at), one = tensor({1, 6}, Values(6, 1.0)), none = tensor({1, 6}, Values(6, 0.0));
    const Values kept = written({1, 6}, DType::f32, [&](const Tensor& y) { kernels().gate_mix(y, z, one, none, {}); });
    const Values fresh = written({1, 6}, DType::f32, [&](const Tensor& y) { kernels().gate_mix(y, z, none, one, {}); });
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(kept[i] == doctest::Approx(1 / (1 + std::exp(-at[i]))).epsilon(1e-6));
      CHECK(fresh[i] == doctest::Approx(1 / (1 + std::exp(at[i]))).epsilon(1e-6));
    }
    CHECK(kept[4] == 1);
    CHECK(fresh[4] == 0);
    CHECK(kept[5] == 0);
    CHECK(fresh[5] == 1);
  }

  TEST_CASE("gate_step has the bits of gate_mix, add_noise and layernorm one after the other") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 5}, Shape{2, 19, 33}, Shape{40, 640}}) {
        const GateNoise noise{0.5f, 0.25f, {99, 5, 2}};
        const StateNoise state_noise{0.1f, {99, 5, 3}};
        const Tensor z = randn(shape, 1, type), h = randn(shape, 2, type), o = randn(shape, 3, type);
        const Tensor w = randn({shape.last()}, 4, type), row = randn({shape.rows()}, 5, type);
        const auto like = [](const Tensor& t) { return Tensor::like(t); };
        Kernels& k = kernels();
        const NextState together{like(h), like(h), like(h), like(row), like(row)};
        k.gate_step(together, z, h, o, w, noise, state_noise, 1e-5f);
        const NextState apart{like(h), like(h), like(h), like(row), like(row)};
        k.gate_mix(apart.y, z, h, o, noise);
        k.add_noise(apart.noisy, apart.y, state_noise.sigma, state_noise.key);
        k.layernorm(apart.normed, apart.mean, apart.rstd, apart.y, w, {}, 1e-5f);
        CHECK(same_bits(together.y, apart.y));
        CHECK(same_bits(together.noisy, apart.noisy));
        CHECK(same_bits(together.normed, apart.normed));
        CHECK(same_bits(together.mean, apart.mean));
        CHECK(same_bits(together.rstd, apart.rstd));

        const NextStateGradients d{randn(shape, 6, type), randn(shape, 7, type), randn(shape, 8, type)};
        const Tensor dz[] = {like(z), like(z)}, dh[] = {like(h), like(h)}, d_o[] = {like(o), like(o)};
        const Tensor dw[] = {like(w), like(w)};
        k.gate_step_backward({dz[0]}, {dh[0]}, {d_o[0]}, {dw[0]}, d, together, z, h, o, w, noise);
        const Tensor dy = like(h);
        k.add({dy}, d.y, d.noisy);
        k.layernorm_backward({dy, true}, {dw[1]}, {}, d.normed, apart.y, w, apart.mean, apart.rstd);
        k.gate_mix_backward({dz[1]}, {dh[1]}, {d_o[1]}, dy, z, h, o, noise);
        CHECK(same_bits(dz[0], dz[1]));
        CHECK(same_bits(dh[0], dh[1]));
        CHECK(same_bits(d_o[0], d_o[1]));
        CHECK(same_bits(dw[0], dw[1]));
      }
  }

  TEST_CASE("the gradient of gate_step leaves out the faces that none reached") {
    const Shape shape{5, 33};
    const Tensor z = randn(shape, 1, DType::f32), h = randn(shape, 2, DType::f32), o = randn(shape, 3, DType::f32);
    const Tensor w = randn({33}, 4, DType::f32), mean = randn({5}, 5, DType::f32);
    const NextState next{Tensor::like(h), {}, Tensor::like(h), mean, Tensor::like(mean)};
    Kernels& k = kernels();
    k.gate_step(next, z, h, o, w, {}, {}, 1e-5f);
    const Tensor dy = randn(shape, 6, DType::f32), none = Tensor::zeros(shape, DType::f32, dy.device());
    const auto dz = [&](const NextStateGradients& d) {
      return written(shape, DType::f32,
                     [&](const Tensor& to) { k.gate_step_backward({to}, {}, {}, {}, d, next, z, h, o, w, {}); });
    };
    CHECK(dz({dy, {}, {}}) == dz({dy, none, none}));
    CHECK(dz({{}, dy, {}}) == dz({none, dy, none}));
    CHECK(dz({{}, {}, dy}) == dz({none, none, dy}));
    CHECK(dz({dy, {}, {}}) != dz({{}, {}, dy}));
  }

  TEST_CASE("gate_mix does not depend on the number of threads") {
    const Shape shape{300, 130};
    const Tensor z = randn(shape, 5, DType::f32), h = randn(shape, 6, DType::f32), o = randn(shape, 7, DType::f32);
    check_thread_independent([&] {
      const std::vector<Tensor> out = {Tensor::like(z), Tensor::like(z), Tensor::like(z), Tensor::like(z)};
      const GateNoise noise{1, 0.5f, {7}};
      kernels().gate_mix(out[0], z, h, o, noise);
      kernels().gate_mix_backward(Into{out[1]}, Into{out[2]}, Into{out[3]}, h, z, h, o, noise);
      return out;
    });
  }
}

}  // namespace grt
