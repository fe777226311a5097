// AdamW, step by step, against the oracle and against plain loops in double.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

AdamW adamw_step(const Json& module, const Json& step) {
  const double beta1 = module.at("beta1").get<double>(), beta2 = module.at("beta2").get<double>();
  const double t = step.at("step").get<double>();
  return {.lr = step.at("lr").get<double>(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = module.at("eps").get<double>(),
          .weight_decay = module.at("weight_decay").get<double>(),
          .grad_scale = 1,
          .m_correction = 1 / (1 - std::pow(beta1, t)),
          .v_correction = 1 / (1 - std::pow(beta2, t))};
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("adamw agrees with the oracle over several steps, with and without weight decay") {
    for (const char* name : {"adamw_wd_0", "adamw_wd_0.1"})
      for (DType type : kReals) {
        CAPTURE(name);
        const Json module = reference(name);
        const Tensor p = tensor({7}, numbers(module.at("param")), type);
        const Tensor m = Tensor::zeros({7}, type, cpu()), v = Tensor::zeros({7}, type, cpu());
        for (const Json& step : module.at("steps")) {
          kernels().adamw(p, m, v, tensor({7}, numbers(step.at("grad")), type), adamw_step(module, step));
          CHECK(relative_error(values(p), numbers(step.at("param"))) < 1e-5);
          CHECK(relative_error(values(m), numbers(step.at("m"))) < 1e-5);
          CHECK(relative_error(values(v), numbers(step.at("v"))) < 1e-5);
        }
      }
  }

  TEST_CASE("adamw scales the gradient before it enters the moments") {
    const AdamW step{0.01, 0.9, 0.95, 1e-8, 0.1, 0.25, 2, 3};
    for (DType type : kReals)
      for (std::int64_t n : {1, 1003, 70001}) {
        const Tensor g = randn({n}, 1, type);
        const Guarded p({n}, type, 1.5), m({n}, type, 0.5), v({n}, type, 0.25);
        Values expected_p, expected_m, expected_v;
        for (double d : values(g)) {
          const double scaled = 0.25 * d, mean = 0.9 * 0.5 + 0.1 * scaled,
                       square = 0.95 * 0.25 + 0.05 * scaled * scaled;
          expected_m.push_back(mean);
          expected_v.push_back(square);
          expected_p.push_back(1.5 * (1 - 0.01 * 0.1) - 0.01 * 2 * mean / (std::sqrt(3 * square) + 1e-8));
        }
        kernels().adamw(p.inside(), m.inside(), v.inside(), g, step);
        CHECK(relative_error(values(p.inside()), expected_p) < (type == DType::f32 ? 1e-6 : 1e-12));
        CHECK(relative_error(values(m.inside()), expected_m) < (type == DType::f32 ? 1e-6 : 1e-12));
        CHECK(relative_error(values(v.inside()), expected_v) < (type == DType::f32 ? 1e-6 : 1e-12));
        CHECK(p.intact());
        CHECK(m.intact());
        CHECK(v.intact());
      }
  }

  TEST_CASE("clip_scale is the clipping coefficient of the norm, and NaN of one that is not finite") {
    const Tensor scale = Tensor::empty({1}, DType::f64, cpu());
    const auto clip_scale = [&](double squares, double clip) {
      kernels().clip_scale(scale, tensor({1}, {squares}, DType::f64), clip);
      return values(scale)[0];
    };
    for (const double clip : {0.0, 0.5, 3.0}) CHECK(clip_scale(4, clip) == clip_coefficient(2, clip));
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
      for (const double clip : {0.0, 1.0}) CHECK(std::isnan(clip_scale(bad, clip)));
  }

  TEST_CASE("where the scale of the gradient is NaN nothing is updated") {
    const Tensor one = tensor({2}, {1, 1});
    const std::vector<Tensor> pmv{one.clone(), one.clone(), one.clone()};
    kernels().adamw(pmv[0], pmv[1], pmv[2], one, {0.5, 0.9, 0.95, 1e-8, 0.5, std::nan(""), 10, 20});
    for (const Tensor& t : pmv) CHECK(values(t) == Values{1, 1});
  }

  TEST_CASE("a parameter whose gradient was always zero only decays") {
    const Tensor p = tensor({3}, {1, -2, 4}), zero = tensor({3}, {0, 0, 0}), m = zero.clone(), v = zero.clone();
    kernels().adamw(p, m, v, zero, {0.5, 0.9, 0.95, 1e-8, 0.5, 1, 10, 20});
    CHECK(values(p) == Values{0.75, -1.5, 3});
  }
}

}  // namespace grt
