// Declaring costs nothing, the blocks are laid out as the optimizer expects, gradients store first and add later, and a
// layer is its equation.
#include "nn/params.h"

#include "nn/block.h"
#include "tests/support.h"

namespace grt {
namespace {

TEST_SUITE("nn") {
  TEST_CASE("declaring takes no memory; a name is taken once") {
    Params params;
    const std::size_t before = test::cpu().in_use();
    params.declare("a.weight", {1 << 20, 1 << 10}, {});
    CHECK(params.count() == std::int64_t{1} << 30);
    CHECK(test::cpu().in_use() == before);
    CHECK(test::contains(test::error_of([&] { params.declare("a.weight", {2, 2}, {}); }), "a.weight"));
    CHECK(params.find("a.weight") != nullptr);
    CHECK(params.find("a") == nullptr);
  }

  TEST_CASE("matrices lie before vectors, none overlaps another, and the gaps count for nothing") {
    Params params;
    params.declare("v", {3}, kOnes);
    params.declare("m", {5, 7}, {});
    params.declare("w", {17}, kZeros);
    params.declare("n", {2, 2}, {});
    params.allocate(test::cpu(), DType::f32);
    CHECK(params.count() == 3 + 35 + 17 + 4);
    const auto at = [&](const char* name) { return params.find(name)->offset; };
    CHECK(at("m") == 0);
    CHECK(at("n") >= 35);
    CHECK(params.decayed_extent() >= at("n") + 4);
    CHECK(at("v") >= params.decayed_extent());
    CHECK(at("w") >= at("v") + 3);
    CHECK(params.extent() >= at("w") + 17);
    params.initialize(1);
    double total = 0, named = 0;
    for (const double x : test::values(params.values())) total += x * x;
    for (const Param& p : params.all())
      for (const double x : test::values(p.var.value())) named += x * x;
    CHECK(total == named);
  }

  TEST_CASE("the first write after clearing stores, later ones add, and what nothing reached becomes zero") {
    Params params;
    const Param& a = params.declare("a", {2, 2}, {});
    const Param& b = params.declare("b", {3}, {});
    params.allocate(test::cpu(), DType::f32);
    params.allocate_gradients();
    const auto write = [&](const Param& p, float value) {
      const Into into = p.var.sink().into();
      for (int i = 0; i < p.shape.numel(); ++i)
        into.to.data<float>()[i] = value + (into.add ? into.to.data<float>()[i] : 0);
    };
    write(a, 5);
    write(b, 5);
    params.clear_gradients();
    write(a, 1);
    write(a, 2);
    params.complete_gradients();
    CHECK(test::values(a.var.grad()) == std::vector<double>(4, 3));
    CHECK(test::values(b.var.grad()) == std::vector<double>(3, 0));
    CHECK(a.var.grad().raw() == params.gradients().range(a.offset, a.shape).raw());
  }

  TEST_CASE("the trained weights are two stretches of the blocks, or those of the layers that are chosen") {
    Params params;
    params.declare("head.bias", {3}, {});
    params.declare("a.weight", {2, 2}, {});
    params.declare("head.weight", {5, 4}, {});
    const Param& gain = params.declare("head.gain", {2}, {});
    params.declare("b.bias", {4}, {});
    params.allocate(test::cpu(), DType::f32);
    params.allocate_gradients();
    REQUIRE(params.trained().size() == 2);
    CHECK(params.trained()[0].begin == 0);
    CHECK(params.trained()[0].count == params.decayed_extent());
    CHECK(params.trained()[0].decayed);
    CHECK(params.trained()[1].begin == params.decayed_extent());
    CHECK(params.trained()[1].begin + params.trained()[1].count == params.extent());
    CHECK_FALSE(params.trained()[1].decayed);

    params.allocate_gradients("head.");
    REQUIRE(params.trained().size() == 2);
    CHECK(params.trained()[0].begin == params.find("head.weight")->offset);
    CHECK(params.trained()[0].begin + params.trained()[0].count == params.decayed_extent());
    CHECK(params.trained()[1].begin == params.find("head.bias")->offset);
    CHECK(params.trained()[1].begin + params.trained()[1].count == params.find("b.bias")->offset);
    for (const Param& p : params.all()) CHECK(p.var.wants_grad() == p.name.starts_with("head."));
    params.clear_gradients();
    params.complete_gradients();
    CHECK(test::values(gain.var.grad()) == std::vector<double>(2, 0));
  }

  TEST_CASE("PairLinear is the product with the concatenation, in value and gradient") {
    Params params;
    const PairLinear pair(Scope{&params, "p"}, 4, 5);
    params.allocate(test::cpu(), DType::f64);
    params.allocate_gradients();
    params.initialize(3);
    const auto run = [&](bool apart) {
      params.clear_gradients();
      const Var a = Var::leaf(test::randn({2, 3, 4}, 1)), b = Var::leaf(test::randn({2, 3, 4}, 2));
      Tape tape;
      Var y;
      {
        Record on(&tape);
        y = apart ? pair(a, pair.fix(b)) : pair.whole(concat(a, b));
      }
      const Tensor value = y.value().clone();
      tape.backward(y, test::randn({2, 3, 5}, 3));
      return std::vector<Tensor>{value, a.grad(), b.grad(), pair.weight->var.grad().clone()};
    };
    const auto apart = run(true), whole = run(false);
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(test::largest_difference(apart[i], whole[i]) < 1e-14);
  }

  TEST_CASE("a block is x + attn(LN(x)), then + mlp(LN(.)), and its tensors have GPT-2's names") {
    Params params;
    const Block block(Scope{&params, "h.0"}, {8, 2, true, Gelu::erf, 0.02});
    params.allocate(test::cpu(), DType::f64);
    params.initialize(4);
    const Var x = test::randn({2, 5, 8}, 1);
    const Var middle = x + block.attn.c_proj(attention(block.attn.c_attn(block.ln_1(x)), 2));
    const Var y = middle + block.mlp.c_proj(gelu(block.mlp.c_fc(block.ln_2(middle)), Gelu::erf));
    CHECK(test::same_bits(block(x).value(), y.value()));
    for (const char* name : {"h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias",
                             "h.0.attn.c_proj.weight", "h.0.ln_2.weight", "h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.bias"})
      CHECK(params.find(name) != nullptr);
  }

  TEST_CASE("a cache holds one slot for each application and names a slot it lacks") {
    KvCache cache({.before = 3}, KvStrategy::full, 2, 4, 10, 8, DType::f32, test::cpu());
    CHECK(cache.capacity() == 10);
    CHECK(cache.slot(2).keys.shape() == Shape{2, 4, 10, 8});
    CHECK(cache.slot(0).keys.raw() != cache.slot(1).keys.raw());
    CHECK(test::contains(test::error_of([&] { cache.slot(3); }), "slot 3 of 3"));
  }

  TEST_CASE("the sequences of a cache have lengths of their own, which a pass adds to and forget() takes from") {
    KvCache cache({.before = 1}, KvStrategy::full, 3, 2, 6, 4, DType::f32, test::cpu());
    cache.enter({3, 2});
    CHECK(cache.runs() == std::vector<TokenRun>{{0, 0, 2}, {1, 0, 2}, {2, 0, 2}});
    CHECK(cache.length(1) == 0);
    cache.leave();
    CHECK(cache.length(1) == 2);

    cache.expect(2, 1);
    cache.expect(0, 3);
    cache.expect(2, 2);
    cache.enter({1, 6});
    CHECK(cache.runs() == std::vector<TokenRun>{{2, 2, 1}, {0, 2, 3}, {2, 3, 2}});
    const std::vector<std::int32_t> going = {0, 2, 3, 5};
    cache.halt(going, 0);
    CHECK(cache.runs() == std::vector<TokenRun>{{2, 2, 1}, {0, 3, 2}, {2, 4, 1}});
    cache.take_up_all();
    CHECK(cache.runs().size() == 3);
    cache.leave();
    CHECK(cache.length(0) == 5);
    CHECK(cache.length(1) == 2);
    CHECK(cache.length(2) == 5);
    cache.forget(2, 3);
    CHECK(cache.length(2) == 3);

    cache.expect(2, 4);
    CHECK(test::error_of([&] { cache.enter({1, 4}); }) == "key/value cache: 3 + 4 tokens do not fit into one of 6");
    cache.expect(1, 2);
    CHECK(test::error_of([&] { cache.enter({1, 3}); }) == "key/value cache: 3 tokens where 2 are expected");
    CHECK(test::contains(test::error_of([&] { cache.enter({2, 1}); }), "2 sequences, but it is one of 3"));
  }

  TEST_CASE("what a cache does not have is refused") {
    KvCache cache({.core = 1, .steps = 2}, KvStrategy::mean, 1, 1, 6, 4, DType::f32, test::cpu());
    using test::error_of;
    CHECK(error_of([&] { cache.length(1); }) == "key/value cache: sequence 1 of 1");
    CHECK(error_of([&] { cache.forget(-1, 0); }) == "key/value cache: sequence -1 of 1");
    CHECK(error_of([&] { cache.expect(2, 1); }) == "key/value cache: sequence 2 of 1");
    const KvCache all({.core = 1, .steps = 2}, KvStrategy::full, 1, 1, 6, 4, DType::f32, test::cpu());
    CHECK(error_of([&] { cache.copy_sequence(0, all, 0); }) ==
          "key/value cache: 1 slots are not those of a cache with 2");
    cache.enter({1, 3});
    const std::vector<std::int32_t> beyond = {3};
    CHECK(error_of([&] { cache.take(0, beyond); }) == "key/value cache: row 3 of 3 under way");
  }

  TEST_CASE("under a mean no token stops before the first step while others go on") {
    KvCache cache({.core = 1, .steps = 2}, KvStrategy::mean, 1, 1, 6, 4, DType::f32, test::cpu());
    cache.enter({1, 3});
    const std::vector<std::int32_t> first = {0};
    CHECK(test::error_of([&] { cache.halt(first, 0); }) ==
          "key/value cache: 2 of 3 tokens stop before their first step");
    cache.halt({}, 0);  // all of them
    cache.leave();
    CHECK(cache.length(0) == 3);
  }

  TEST_CASE("a slot that gets some of the tokens has them side by side, and forgets those of later positions") {
    KvCache cache({.before = 2}, KvStrategy::full, 2, 1, 8, 4, DType::f32, test::cpu());
    cache.expect(0, 3);
    cache.expect(1, 2);
    cache.enter({1, 5});
    const std::vector<std::int32_t> first = {0, 2, 4}, second = {0};
    cache.take(1, first);
    CHECK(cache.runs() == std::vector<TokenRun>{{0, 0, 2}, {1, 0, 1}});
    cache.take_all();
    CHECK(cache.runs() == std::vector<TokenRun>{{0, 0, 3}, {1, 0, 2}});
    cache.leave();
    KvCache copy({.before = 2}, KvStrategy::full, 1, 1, 8, 4, DType::f32, test::cpu());
    copy.copy_sequence(0, cache, 0);
    CHECK(copy.length(0) == 3);
    CHECK(test::same_bits(copy.slot(1).keys.range(0, {8, 4}), cache.slot(1).keys.range(0, {8, 4})));
    cache.forget(0, 2);
    for (KvCache* c : {&cache, &copy}) {
      c->expect(0, 1);
      c->enter({1, 1});
      c->take(1, second);
      CHECK(c->runs() == std::vector<TokenRun>{{0, c == &cache ? 1 : 2, 1}});
      c->leave();
    }
  }
}

}  // namespace
}  // namespace grt
