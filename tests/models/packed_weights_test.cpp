// Models whose weights are packed: the same model in f32, and that of the rounded weights in bf16 and int8, bit for
// bit.
#include <cstring>
#include <numeric>

#include "core/json.h"
#include "models/model.h"
#include "tests/models/toys.h"
#include "tests/support.h"
#include "train/generate.h"

namespace grt {
namespace {

// Wide enough for matrices of whole panels; the vocabulary is no multiple of one.
Json toy(const std::string& architecture) {
  Json json{{"architecture", architecture}, {"vocab_size", 70}, {"padded_vocab_size", 80},
            {"context_length", 12},         {"d_model", 64},    {"n_heads", 2}};
  json.update(architecture == "dense" ? Json{{"n_layers", 2}, {"bias", true}}
                                      : Json{{"n_prelude", 1}, {"n_core", 1}, {"n_recurrences", 3}, {"n_coda", 1}});
  return json;
}

std::unique_ptr<LanguageModel> packed(const Json& json, DType type) {
  auto model = make_model(json, "toy");
  model->pack_weights(type);
  model->params().allocate(test::cpu(), DType::f32);
  model->params().initialize(7);
  return model;
}

// An f32 model with the values that the packed one has.
std::unique_ptr<LanguageModel> unpacked(const Json& json, const LanguageModel& from) {
  auto model = make_model(json, "toy");
  model->params().allocate(test::cpu(), DType::f32);
  model->params().initialize(7);
  for (const Param& p : from.params().all()) {
    if (!p.packed) continue;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(p.shape[0]));
    std::iota(ids.begin(), ids.end(), 0);
    const Tensor rows = Tensor::from<std::int32_t>({1, p.shape[0]}, ids, test::cpu());
    const Tensor values = embedding(rows, p.var, Tensor::zeros(p.shape, DType::f32, test::cpu())).value();
    const Tensor to = model->params().find(p.name)->var.value();
    std::memcpy(to.raw(), values.raw(), to.bytes());
  }
  return model;
}

TEST_SUITE("models") {
  TEST_CASE("a model with packed weights has the logits, losses and next tokens of the model with their values") {
    for (const char* architecture : {"dense", "grt", "poisson", "mor", "rrt", "ouro"})
      for (const DType type : {DType::packed_f32, DType::packed_bf16, DType::packed_int8}) {
        INFO(architecture, ", ", name_of(type));
        const Json json = toy(architecture);
        const auto model = packed(json, type), twin = unpacked(json, *model);
        const Tensor ids = test::tokens(3, 6, 1);
        const int depth = model->depths().full;
        const Pass pass{.causal_routing = true};
        const Tensor z = model->hidden(ids, depth, pass).value(), same = twin->hidden(ids, depth, pass).value();
        CHECK(test::same_bits(model->logits(z), twin->logits(same)));
        CHECK(test::same_bits(model->losses(z, ids.view({18})), twin->losses(same, ids.view({18}))));

        const std::vector<std::vector<int>> prompts = {{1, 2, 3}, {4, 5, 6, 7}};
        Decoder a(*model, {}, 10), b(*twin, {}, 10);
        CHECK(a.start(prompts) == b.start(prompts));
        for (const int id : {8, 69, 2}) CHECK(a.next(std::vector{id, id}) == b.next(std::vector{id, id}));
      }
  }

  TEST_CASE("packing rounds every product's matrix and nothing else") {
    const auto model = packed(toy("grt"), DType::packed_int8);
    auto exact = make_model(toy("grt"), "toy");
    exact->params().allocate(test::cpu(), DType::f32);
    exact->params().initialize(7);
    for (const Param& p : model->params().all()) {
      INFO(p.name);
      const bool matrix = p.shape.rank() == 2 && p.name != "wpe.weight";
      CHECK(p.packed.has_value() == matrix);
      if (!matrix) CHECK(test::same_bits(p.var.value(), exact->params().find(p.name)->var.value()));
    }
    CHECK(model->params().bytes() < exact->params().bytes() * 2 / 5);
    CHECK(model->params().count() == exact->params().count());
    CHECK(packed(toy("rrt"), DType::packed_bf16)->params().find("core.0.attn.c_attn.weight")->packed.has_value());
  }

  TEST_CASE("a model with packed weights cannot be trained, nor packed with a value that is not finite") {
    const auto model = packed(toy("dense"), DType::packed_bf16);
    CHECK(test::contains(test::error_of([&] { model->params().allocate_gradients(); }),
                         "wte.weight (80, 64): it is packed bf16, which has no gradient"));
    const Param& wte = *model->params().find("wte.weight");
    CHECK(test::contains(test::error_of([&] {
                           model->params().fill(wte, [](const Tensor& to) {
                             to.device().zero(to.raw(), to.bytes());
                             to.data<float>()[5] = std::numeric_limits<float>::infinity();
                           });
                         }),
                         "wte.weight (80, 64): 1 of 5120 values are NaN or infinite, so it cannot be packed bf16"));
  }
}

}  // namespace
}  // namespace grt
