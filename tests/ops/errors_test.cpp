// What operations refuse, and how they say it.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "tests/support.h"

namespace grt {
namespace {

TEST_SUITE("ops") {
  TEST_CASE("an error names the operation and the shapes") {
    const auto zeros = [](Shape s) { return Var(Tensor::zeros(s, DType::f64, test::cpu())); };
    const auto ids = [](Shape s) { return Tensor::zeros(s, DType::i32, test::cpu()); };
    const Var x = zeros({2, 3, 5});
    using test::error_of;

    CHECK(error_of([&] { x + zeros({2, 3, 4}); }) == "add: (2, 3, 5) and (2, 3, 4) differ (there is no broadcasting)");
    CHECK(error_of([&] { lerp(x, zeros({5}), 0.5f); }) == "lerp: (2, 3, 5) and (5) differ");
    CHECK(error_of([&] {
            concat(x, zeros({2, 4, 5}));
          }) == "concat: (2, 3, 5) and (2, 4, 5) may differ in the last extent only");
    CHECK(error_of([&] { linear(x, zeros({4, 6})); }) == "linear: x is (2, 3, 5), so w must be (out, 5), not (4, 6)");
    CHECK(error_of([&] { linear(x, zeros({4, 5}), zeros({3})); }) == "linear: w is (4, 5), so b must be (4), not (3)");
    CHECK(error_of([&] {
            linear_columns(x, zeros({4, 9}), 5);
          }) == "linear_columns: columns 5..10 lie outside w (4, 9)");
    CHECK(error_of([&] {
            linear_columns(x, zeros({4, 9}), 2, zeros({2, 3, 3}));
          }) == "linear_columns: x is (2, 3, 5) and w (4, 9), so plus must be (2, 3, 4), not (2, 3, 3)");
    CHECK(error_of([&] { layernorm(x, zeros({4})); }) == "layernorm: x is (2, 3, 5), so w must be (5), not (4)");
    CHECK(error_of([&] { layernorm(x, zeros({5}), zeros({6})); }) ==
          "layernorm: x is (2, 3, 5), so b must be (5), not (6)");
    CHECK(error_of([&] {
            embedding(ids({2, 4}), zeros({9, 5}), zeros({6, 5}), 3);
          }) == "embedding: positions 3..6 do not fit into wpe (6, 5)");
    CHECK(error_of([&] {
            embedding(ids({2, 4}), zeros({9, 5}), zeros({6, 4}));
          }) == "embedding: wte is (9, 5), wpe (6, 4)");
    CHECK(error_of([&] {
            embedding(x.value(), zeros({9, 5}), zeros({6, 5}));
          }) == "embedding: tokens must be (B, T) i32, not (2, 3, 5) f64");
    CHECK(error_of([&] {
            attention(zeros({2, 3, 20}), 2);
          }) == "attention: qkv must be (B, T, 3C) with C a multiple of 2 heads, not (2, 3, 20)");
    CHECK(error_of([&] {
            cross_entropy(x, zeros({8, 5}), ids({2, 2}), 7);
          }) == "cross_entropy: z is (2, 3, 5), so there must be 6 targets (i32), not (2, 2)");
    CHECK(error_of([&] {
            cross_entropy(x, zeros({8, 4}), ids({2, 3}), 7);
          }) == "cross_entropy: z is (2, 3, 5), so w must be (V, 5), not (8, 4)");
    CHECK(error_of([&] {
            token_losses(x, zeros({8, 4}), ids({2, 3}), 7);
          }) == "token_losses: z is (2, 3, 5), so w must be (V, 5), not (8, 4)");
    CHECK(error_of([&] {
            cross_entropy(x, zeros({8, 5}), ids({2, 3}), 9);
          }) == "cross_entropy: vocab is 9, w has 8 rows");
    CHECK(error_of([&] {
            exit_loss(zeros({3, 4}), zeros({3, 5}), 0);
          }) == "exit_loss: gates (3, 4) and losses (3, 5) must both be (rows, exits)");
    CHECK(error_of([&] { exit_distribution(x.value()); }) ==
          "exit_distribution: gates must be (rows, exits), not (2, 3, 5)");
    CHECK(error_of([&] {
            gate_mix(x, x, zeros({2, 3, 4}), {});
          }) == "gate_mix: z (2, 3, 5), h (2, 3, 5) and o (2, 3, 4) must agree");
    CHECK(error_of([&] { gate_step(x, x, x, zeros({4}), {}, {}); }) ==
          "gate_step: h is (2, 3, 5), so w must be (5), not (4)");
    CHECK(error_of([&] {
            add_layernorm(x, zeros({2, 3, 4}), zeros({5}));
          }) == "add_layernorm: (2, 3, 5) and (2, 3, 4) differ");
    CHECK(error_of([&] { top_k(zeros({2, 3}).value(), 4); }) == "top_k: 4 of scores (2, 3), which must be (B, T)");
    CHECK(error_of([&] {
            gather_rows(x, ids({2, 4}));
          }) ==
          "gather_rows: of rows (2, 3, 5) a sequence, (B, T, C), the index must name at most T, (B, k) i32, not (2, 4) "
          "i32");
    CHECK(error_of([&] {
            gated_scatter(x, ids({2, 2}), zeros({2, 2, 2}), zeros({2, 2, 5}), 1);
          }) ==
          "gated_scatter: h is (2, 3, 5) and the index (2, 2), so o must be (2, 2, 5) and z that with 1 column, not "
          "(2, 2, 5) and (2, 2, 2)");
    CHECK(error_of([&] {
            bce_with_logits(x, zeros({2, 3}).value());
          }) == "bce_with_logits: z (2, 3, 5) and targets (2, 3) must agree, and not be empty");
    CHECK(error_of([&] { gate_mix(x, x, x, {0, 0, {}}); }) == "gate_mix: the temperature tau is 0, must be positive");
  }

  TEST_CASE("inputs of different types, or on different devices, are refused by every operation that has several") {
    const std::unique_ptr<Device> elsewhere = open_cpu();
    const Tensor ids = Tensor::zeros({2, 3}, DType::i32, test::cpu()), few = ids.range(0, {2, 1});
    const auto a = [](Shape s) { return Var(Tensor::zeros(s, DType::f64, test::cpu())); };
    using Make = std::function<Var(Shape)>;
    struct Call {
      std::string op;
      std::function<void(const Make& b)> run;
    };
    const std::vector<Call> calls = {
        {"add",
         [&](const Make& b) {
           a({2, 3}) + b({2, 3});
         }},
        {"lerp",
         [&](const Make& b) {
           lerp(a({2, 3}), b({2, 3}), 0.5f);
         }},
        {"concat",
         [&](const Make& b) {
           concat(a({2, 3}), b({2, 4}));
         }},
        {"linear",
         [&](const Make& b) {
           linear(a({2, 3}), b({4, 3}));
         }},
        {"linear",
         [&](const Make& b) {
           linear(a({2, 3}), a({4, 3}), b({4}));
         }},
        {"linear_columns",
         [&](const Make& b) {
           linear_columns(a({2, 3}), b({4, 5}), 1);
         }},
        {"linear_columns",
         [&](const Make& b) {
           linear_columns(a({2, 3}), a({4, 5}), 1, b({2, 4}));
         }},
        {"layernorm",
         [&](const Make& b) {
           layernorm(a({2, 3}), b({3}));
         }},
        {"add_layernorm",
         [&](const Make& b) {
           add_layernorm(a({2, 3}), b({2, 3}), a({3}));
         }},
        {"add_layernorm",
         [&](const Make& b) {
           add_layernorm(a({2, 3}), a({2, 3}), a({3}), b({3}));
         }},
        {"embedding",
         [&](const Make& b) {
           embedding(ids, b({8, 4}), a({3, 4}));
         }},
        {"attention",
         [&](const Make& b) {
           attention(a({1, 2, 6}), 1, a({1, 1, 4, 2}).value(), b({1, 1, 4, 2}).value(), 0);
         }},
        {"gate_mix",
         [&](const Make& b) {
           gate_mix(b({2, 3}), a({2, 3}), a({2, 3}), {});
         }},
        {"gate_step",
         [&](const Make& b) {
           gate_step(a({2, 3}), a({2, 3}), a({2, 3}), b({3}), {}, {});
         }},
        {"exit_loss",
         [&](const Make& b) {
           exit_loss(a({2, 3}), b({2, 3}), 0);
         }},
        {"exit_gate_loss",
         [&](const Make& b) {
           exit_gate_loss(a({2, 3}), b({2, 3}).value());
         }},
        {"cross_entropy",
         [&](const Make& b) {
           cross_entropy(a({2, 3, 4}), b({8, 4}), ids, 7);
         }},
        {"token_losses",
         [&](const Make& b) {
           token_losses(a({2, 3, 4}), b({8, 4}), ids, 7);
         }},
        {"distillation",
         [&](const Make& b) {
           distillation(a({2, 3, 4}), a({8, 4}), ids, b({2, 3, 5}).value(), b({8, 5}).value(), 7, {});
         }},
        {"bce_with_logits",
         [&](const Make& b) {
           bce_with_logits(a({2, 3}), b({2, 3}).value());
         }},
        {"gated_scatter",
         [&](const Make& b) {
           gated_scatter(a({2, 3, 4}), few, a({2, 1, 1}), b({2, 1, 4}), 1);
         }},
    };
    for (const Call& call : calls) {
      const std::string type =
          test::error_of([&] { call.run([](Shape s) { return Var(Tensor::zeros(s, DType::f32, test::cpu())); }); });
      CHECK_MESSAGE(type.starts_with(call.op + ": the inputs "), type);
      CHECK_MESSAGE(type.ends_with("must be of one type, not f64 and f32"), call.op);
      const std::string device =
          test::error_of([&] { call.run([&](Shape s) { return Var(Tensor::zeros(s, DType::f64, *elsewhere)); }); });
      CHECK_MESSAGE(test::contains(device, call.op + ": the inputs "), device);
      CHECK_MESSAGE(test::contains(device, " must lie on one device, not on cpu"), call.op);
    }
  }

  TEST_CASE("truncated_normal() knows no row beyond those that a key tells apart") {
    const auto rows_from = [](std::int64_t first, std::int64_t rows) {
      return truncated_normal({rows, 2}, 1, {1, 2, 3}, first, DType::f64, test::cpu());
    };
    CHECK(rows_from((std::int64_t{1} << 32) - 2, 2).numel() == 4);
    CHECK(test::error_of([&] { rows_from((std::int64_t{1} << 32) - 1, 2); }) ==
          "truncated_normal: rows 4294967295.. of (2, 2) are beyond what a key names");
  }

  TEST_CASE("runs that are not those of the batch or the cache are refused") {
    const Var qkv(Tensor::zeros({1, 3, 12}, DType::f64, test::cpu()));
    const Tensor cache = Tensor::zeros({2, 2, 5, 2}, DType::f64, test::cpu());
    const auto refuse = [&](std::vector<TokenRun> runs) {
      return test::error_of([&] { attention(qkv, 2, cache, cache, runs); });
    };
    CHECK(refuse({{0, 0, 2}}) == "attention: qkv is (1, 3, 12), but the runs have 2 tokens");
    CHECK(refuse({{2, 0, 3}}) == "attention: sequence 2 of a cache of 2");
    CHECK(refuse({{1, 3, 3}}) == "attention: 3 + 3 tokens do not fit into a cache of 5");
  }

  TEST_CASE("a cache that is full, misshapen or recorded is refused") {
    const Var qkv(test::randn({1, 3, 12}, 4));
    const Tensor cache = Tensor::zeros({1, 2, 5, 2}, DType::f64, test::cpu());
    CHECK(test::error_of([&] { attention(qkv, 2, cache, cache, 3); }) ==
          "attention: 3 + 3 tokens do not fit into a cache of 5");
    CHECK(test::contains(test::error_of([&] { attention(qkv, 1, cache, cache, 0); }),
                         "attention: qkv is (1, 3, 12), so the cache must be (1, 1, 5, 4), not (1, 2, 5, 2)"));
    Tape tape;
    Record on(&tape);
    const Var wanted = Var::leaf(qkv.value());
    CHECK(
        test::contains(test::error_of([&] { attention(wanted, 2, cache, cache, 0); }), "attention: a key/value cache"));
    const std::vector<TokenRun> unequal = {{0, 1, 2}, {0, 3, 1}};
    CHECK(test::contains(test::error_of([&] { attention(wanted, 2, cache, cache, unequal); }),
                         "attention: a key/value cache"));
  }
}

}  // namespace
}  // namespace grt
