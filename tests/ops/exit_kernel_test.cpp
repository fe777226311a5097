// The distribution over exits and the loss it weights, against the oracle and plain products in double.
#include "tests/ops/kernel_checks.h"

namespace grt {
namespace {

using namespace test;

// As products, gate by gate; `go_on` is 1 - sigmoid(gate) with all its digits.
struct Exit {
  double p, stop, go_on;
};

std::vector<Exit> exits_of(const double* gates, std::int64_t exits) {
  std::vector<Exit> row;
  double left = 1;
  for (std::int64_t s = 0; s < exits; ++s) {
    const bool last = s + 1 == exits;
    const double stop = last ? 1 : 1 / (1 + std::exp(-gates[s])), go_on = last ? 0 : 1 / (1 + std::exp(gates[s]));
    row.push_back({left * stop, stop, go_on});
    left *= go_on;
  }
  return row;
}

struct Result {
  Values p, values, dgates, dlosses;
};

// dgates from the Jacobian of p, written out: dp_q / dgate_s is 0 for q < s, p_s (1 - lambda_s) for q = s and
// -lambda_s p_q for q > s.
Result reference(const Values& gates, const Values& losses, std::int64_t exits, double beta, double dy) {
  Result out;
  const double share = dy * static_cast<double>(exits) / static_cast<double>(gates.size());
  for (std::size_t at = 0; at < gates.size(); at += static_cast<std::size_t>(exits)) {
    const std::vector<Exit> row = exits_of(gates.data() + at, exits);
    double value = 0;
    for (std::int64_t s = 0; s < exits; ++s) {
      value += row[s].p * (losses[at + s] + beta * std::log(row[s].p));
      double dgate = 0;
      for (std::int64_t q = s; q < exits && s + 1 < exits; ++q)
        dgate += (q == s ? row[s].go_on : -row[s].stop) * row[q].p * (losses[at + q] + beta * (std::log(row[q].p) + 1));
      out.p.push_back(row[s].p);
      out.dlosses.push_back(share * row[s].p);
      out.dgates.push_back(share * dgate);
    }
    out.values.push_back(value);
  }
  return out;
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("the exit distribution and its entropy are the oracle's") {
    const Json module = reference("ouro_exit");
    for (DType type : kReals) {
      const Tensor gates = tensor({6, 4}, numbers(module.at("gate_logits")), type);
      const Values p = written({6, 4}, type, [&](const Tensor& to) { kernels().exit_distribution(to, gates); });
      CHECK(relative_error(p, numbers(module.at("p"))) < 1e-5);
      const Tensor none = Tensor::zeros({6, 4}, type, cpu());
      Values minus_entropy = written({6}, type, [&](const Tensor& to) { kernels().exit_loss(to, gates, none, 1.0); });
      for (double& x : minus_entropy) x = -x;
      CHECK(relative_error(minus_entropy, numbers(module.at("entropy"))) < 1e-5);
    }
  }

  TEST_CASE("exit_loss and its gradients are what their formulas say") {
    for (DType type : kReals)
      for (const Shape& shape : {Shape{1, 1}, Shape{5, 1}, Shape{7, 4}, Shape{1500, 10}})
        for (const double beta : {0.0, 0.05}) {
          const Tensor gates = randn(shape, 1, type), losses = randn(shape, 2, type), dy = tensor({1}, {1.5}, type);
          const Result expected = reference(values(gates), values(losses), shape[1], beta, 1.5);
          Kernels& k = kernels();
          CHECK(relative_error(written(shape, type, [&](const Tensor& to) { k.exit_distribution(to, gates); }),
                               expected.p) < tolerance(type));
          CHECK(
              relative_error(written({shape[0]}, type, [&](const Tensor& to) { k.exit_loss(to, gates, losses, beta); }),
                             expected.values) < tolerance(type));
          check_into(expected.dgates, shape, type,
                     [&](const Into& to) { k.exit_loss_backward(to, Into{}, dy, gates, losses, beta); });
          check_into(expected.dlosses, shape, type,
                     [&](const Into& to) { k.exit_loss_backward(Into{}, to, dy, gates, losses, beta); });
        }
  }

  TEST_CASE("exit_gate_loss and its gradient are the oracle's") {
    const Json module = reference("ouro_stage_2");
    for (DType type : kReals) {
      const Tensor gates = tensor({6, 4}, numbers(module.at("gate_logits")), type);
      const Tensor losses = tensor({6, 4}, numbers(module.at("ce_by_step")), type);
      Values rows = written({6}, type, [&](const Tensor& to) { kernels().exit_gate_loss(to, gates, losses); });
      double sum = 0;
      for (const double x : rows) sum += x / 24;
      CHECK(sum == doctest::Approx(module.at("loss").get<double>()).epsilon(1e-5));
      const Values d = numbers(module.at("dgate_logits"));
      check_into(d, {6, 4}, DType::f32, [&](const Into& to) {
        kernels().exit_gate_loss_backward(to, tensor({1}, {1}), tensor({6, 4}, numbers(module.at("gate_logits"))),
                                          tensor({6, 4}, numbers(module.at("ce_by_step"))));
      });
    }
  }

  TEST_CASE("gates that are all but shut or open keep the relative accuracy of p, which sums to 1") {
    const Values at = {-40, -40, 0, 40, -40, 0, 40, 40, 0, -300, 3000, 0};
    const Tensor gates = tensor({4, 3}, at, DType::f64), losses = tensor({4, 3}, Values(12, 2.0), DType::f64);
    const Values p = written({4, 3}, DType::f64, [&](const Tensor& to) { kernels().exit_distribution(to, gates); });
    const double shut = std::exp(-40.0);
    const Values expected = {shut, shut, 1, 1, shut * shut, shut, 1, shut, shut * shut, std::exp(-300.0), 1, 0};
    for (std::size_t i = 0; i < p.size(); ++i)
      CHECK(std::abs(p[i] - expected[i]) <= 1e-12 * expected[i]);  // e^-40 is not 0
    for (std::size_t r = 0; r < 4; ++r) CHECK(std::abs(p[3 * r] + p[3 * r + 1] + p[3 * r + 2] - 1) < 1e-15);
    const Values sums =
        written({4}, DType::f64, [&](const Tensor& to) { kernels().exit_loss(to, gates, losses, 0.05); });
    for (const double x : sums) CHECK(x == doctest::Approx(2));
  }

  TEST_CASE("the exit kernels do not depend on the number of threads") {
    const Shape shape{1500, 6};
    const Tensor gates = randn(shape, 5, DType::f32), losses = randn(shape, 6, DType::f32);
    check_thread_independent([&] {
      const Tensor p = Tensor::like(gates), values = Tensor::empty({1500}, DType::f32, cpu());
      const Tensor dgates = Tensor::like(gates), dlosses = Tensor::like(gates);
      kernels().exit_distribution(p, gates);
      kernels().exit_loss(values, gates, losses, 0.05);
      kernels().exit_loss_backward(Into{dgates}, Into{dlosses}, tensor({1}, {1}), gates, losses, 0.05);
      return std::vector{p, values, dgates, dlosses};
    });
  }
}

}  // namespace grt
