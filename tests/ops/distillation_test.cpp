// Learning from a teacher at its two ends: a teacher that agrees teaches nothing, one without weight is not heard.
#include "ops/ops.h"
#include "tests/support.h"

namespace grt {
namespace {

using test::error_of;
using test::randn;

Tensor targets() {
  return Tensor::from<std::int32_t>({2, 3}, std::vector<std::int32_t>{0, 4, 6, 6, 1, 2}, test::cpu());
}

struct Taught {
  double loss;
  Tensor dz, dw;
};

template <class F>
Taught taught(const Tensor& z, const Tensor& w, F&& f) {
  const Var student = Var::leaf(z), head = Var::leaf(w);
  Tape tape;
  Var loss;
  {
    Record on(&tape);
    loss = f(student, head);
  }
  tape.backward(loss, randn({1}, 9, z.dtype()));
  return {test::values(loss.value())[0], student.grad(), head.grad()};
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("a teacher with the student's own logits leaves no divergence and no gradient, exactly") {
    for (const DType type : {DType::f32, DType::f64}) {
      for (const double temperature : {0.5, 1.0, 3.0}) {
        const Tensor z = scale(randn({2, 3, 21}, 1, type), 3).value(), w = randn({70, 21}, 2, type);
        const Taught t = taught(z, w, [&](const Var& student, const Var& head) {
          return distillation(student, head, targets(), z, w, 67, {1, temperature});
        });
        CHECK(t.loss == 0);
        for (const Tensor& gradient : {t.dz, t.dw})
          for (const double x : test::values(gradient)) REQUIRE(x == 0);
      }
    }
  }

  TEST_CASE("without weight the teacher changes nothing: loss and gradients are those of cross_entropy") {
    const Tensor z = randn({2, 3, 21}, 1), w = randn({70, 21}, 2), other = randn({2, 3, 8}, 3),
                 head = randn({80, 8}, 4);
    const Taught alone = taught(z, w, [&](const Var& s, const Var& h) { return cross_entropy(s, h, targets(), 67); });
    const Taught t = taught(z, w, [&](const Var& s, const Var& h) {
      return distillation(s, h, targets(), other, head, 67, {0, 2});
    });
    CHECK(t.loss == doctest::Approx(alone.loss).epsilon(1e-13));
    CHECK(test::largest_difference(t.dz, alone.dz) < 1e-14);
    CHECK(test::largest_difference(t.dw, alone.dw) < 1e-14);
  }

  TEST_CASE("columns of padding in either head play no part") {
    const Tensor z = randn({2, 3, 5}, 1), w = randn({16, 5}, 2), other = randn({2, 3, 8}, 3), head = randn({20, 8}, 4);
    const auto run = [&] {
      return taught(z, w, [&](const Var& s, const Var& h) {
        return distillation(s, h, targets(), other, head, 11, {0.5, 2});
      });
    };
    const Taught before = run();
    for (const Tensor& rows : {w.rows(11, 5), head.rows(11, 9)})
      for (std::int64_t i = 0; i < rows.numel(); ++i) rows.data<double>()[i] = 100;
    const Taught after = run();
    CHECK(after.loss == before.loss);
    CHECK(test::same_bits(after.dz, before.dz));
    CHECK(test::same_bits(after.dw.rows(0, 11), before.dw.rows(0, 11)));
    for (const double x : test::values(after.dw.rows(11, 5))) CHECK(x == 0);
  }

  TEST_CASE("distillation names itself, its rule and the shapes that do not fit") {
    const Tensor z = randn({2, 3, 5}, 1), w = randn({8, 5}, 2), other = randn({2, 3, 4}, 3), head = randn({8, 4}, 4);
    const auto error = [&](const Tensor& student, const Tensor& teacher, const Tensor& teacher_head,
                           Distillation rule) {
      return error_of([&] { distillation(student, w, targets(), teacher, teacher_head, 7, rule); });
    };
    CHECK(error(randn({2, 3, 6}, 1), other, head, {}) ==
          "distillation: z is (2, 3, 6), so w must be (V, 6), not (8, 5)");
    CHECK(error(z, other, w, {}) == "distillation, teacher: z is (2, 3, 4), so w must be (V, 4), not (8, 5)");
    CHECK(error(z, randn({2, 2, 4}, 3), head, {}) ==
          "distillation, teacher: z is (2, 2, 4), so there must be 4 targets (i32), not (2, 3)");
    CHECK(error(z, other, randn({6, 4}, 4), {}) == "distillation, teacher: vocab is 7, w has 6 rows");
    for (const Distillation rule : {Distillation{-0.1, 1}, Distillation{1.1, 1}, Distillation{0.5, 0}})
      CHECK(test::contains(error(z, other, head, rule), "distillation: the weight must be 0..1"));
  }
}

}  // namespace grt
