// Dense blocks that become a recurrent model's: which go where, that all else stays, and that the whole is then what
// the dense model was where the two coincide.
#include "train/init_map.h"

#include "core/safetensors.h"
#include "tests/models/toys.h"
#include "tests/support.h"
#include "train/checkpoint.h"

namespace grt {
namespace {

using test::contains;
using test::error_of;

Json dense_config(int layers) {
  return {{"architecture", "dense"}, {"vocab_size", 13}, {"padded_vocab_size", 32}, {"context_length", 9},
          {"d_model", 12},           {"n_heads", 3},     {"n_layers", layers}};
}

Json recurrent_config(const std::string& architecture, int p, int b, int c) {
  return {{"architecture", architecture},
          {"vocab_size", 13},
          {"padded_vocab_size", 16},
          {"context_length", 6},
          {"d_model", 12},
          {"n_heads", 3},
          {"n_recurrences", 3},
          {"n_prelude", p},
          {"n_core", b},
          {"n_coda", c}};
}

void write_weights(const LanguageModel& model, const fs::path& file) {
  std::vector<NamedTensor> all;
  for (const Param& p : model.params().all()) all.push_back({p.name, p.var.value()});
  write_safetensors(file, all);
}

std::string map_of(int layers, int p, int b, int c) {
  std::string text;
  for (const BlockCopy& copy :
       middle_blocks(*make_model(recurrent_config("grt", p, b, c), "test"), *make_model(dense_config(layers), "test")))
    text += copy.to + "<" + copy.from + " ";
  return text;
}

}  // namespace

TEST_SUITE("train") {
  TEST_CASE("prelude is the first blocks, coda the last, core the middle of those between") {
    CHECK(map_of(7, 2, 2, 1) == "prelude.0<h.0 prelude.1<h.1 core.0<h.3 core.1<h.4 coda.0<h.6 ");
    CHECK(map_of(12, 1, 1, 1) == "prelude.0<h.0 core.0<h.5 coda.0<h.11 ");  // the earlier of the two in the middle
    CHECK(map_of(3, 1, 1, 1) == "prelude.0<h.0 core.0<h.1 coda.0<h.2 ");
    CHECK(map_of(5, 0, 3, 0) == "core.0<h.1 core.1<h.2 core.2<h.3 ");
  }

  TEST_CASE("blocks, embeddings and ln_f are copied, what a method adds keeps its own initial values") {
    const test::TempDir dir;
    const auto dense = test::build(dense_config(7), DType::f32, 3);
    write_weights(*dense, dir / "dense.safetensors");
    for (const std::string architecture : {"grt", "poisson", "mor", "rrt", "ouro"}) {
      CAPTURE(architecture);
      const auto model = test::build(recurrent_config(architecture, 2, 2, 1), DType::f32, 5);
      const auto fresh = test::build(recurrent_config(architecture, 2, 2, 1), DType::f32, 5);
      load_from_dense(*model, *dense, dir / "dense.safetensors");
      int own = 0;
      for (const Param& p : model->params().all()) {
        std::string from = p.name;
        for (const auto& [to, block] : middle_blocks(*model, *dense))
          if (p.name.starts_with(to + ".")) from = block + p.name.substr(to.size());
        const Param* source = dense->params().find(from);
        own += source == nullptr;
        const Param* expected = source ? source : fresh->params().find(p.name);
        const std::int64_t rows = p.name == "wte.weight" ? 13 : p.shape[0];
        CHECK_MESSAGE(test::same_bits(p.var.value().rows(0, p.shape.rank() == 1 ? 1 : rows),
                                      expected->var.value().rows(0, p.shape.rank() == 1 ? 1 : rows)),
                      p.name);
      }
      CHECK(own > 0);
      for (const double x : test::values(model->params().find("wte.weight")->var.value().rows(13, 3))) CHECK(x == 0);
    }
  }

  TEST_CASE("a model that recurs once without gate and injection is the dense model") {
    const test::TempDir dir;
    const auto dense = test::build(dense_config(4), DType::f32, 3);
    write_weights(*dense, dir / "dense.safetensors");
    Json config = recurrent_config("grt", 1, 2, 1);
    config["use_gate"] = config["use_injection"] = false;
    const auto model = test::build(config, DType::f32);
    load_from_dense(*model, *dense, dir / "dense.safetensors");
    const Tensor tokens = test::tokens(2, 6);
    CHECK(test::same_bits(model->hidden(tokens, 1, {}).value(), dense->hidden(tokens, 4, {}).value()));
  }

  TEST_CASE("models that do not agree, and too few blocks, are refused by the key") {
    const auto error = [&](const std::string& key, const Json& value) {
      Json config = recurrent_config("grt", 1, 1, 1);
      config[key] = value;
      return error_of([&] { middle_blocks(*make_model(config, "test"), *make_model(dense_config(4), "test")); });
    };
    CHECK(error("n_heads", 4) == "--init-map middle: n_heads is 4 and must be that of the dense model (--n-heads 3)");
    CHECK(contains(error("gelu", "tanh"), "gelu is \"tanh\" and must be that of the dense model (--gelu erf)"));
    CHECK(contains(error("bias", true), "(--bias false)"));
    CHECK(contains(error("d_model", 24), "(--d-model 12)"));
    CHECK(contains(error("vocab_size", 12), "(--vocab-size 13)"));
    CHECK(contains(error("tokenizer", "gpt2"), "(--tokenizer bytes)"));
    CHECK(contains(error("context_length", 10), "context_length is 10, the dense model has 9 positions"));
    CHECK(contains(error("n_core", 3), "n_prelude 1 + n_core 3 + n_coda 1 are more than 4 dense blocks"));
    const auto dense = make_model(dense_config(4), "test");
    CHECK(contains(error_of([&] { middle_blocks(*dense, *dense); }), "not dense of dense"));
  }
}

}  // namespace grt
