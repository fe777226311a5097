// What holds for every model: gradients of the whole, sharing, recomputation, exits, initial values, parameter counts.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/gradcheck.h"
#include "core/files.h"
#include "core/threads.h"
#include "models/model.h"
#include "ops/cpu/host/scratch.h"
#include "ops/kernels.h"
#include "tests/models/toys.h"

namespace grt {
namespace {

Json toy(const std::string& architecture, const Json& keys = {}) {
  Json json{{"architecture", architecture}, {"vocab_size", 13}, {"padded_vocab_size", 16},
            {"context_length", 6},          {"d_model", 12},    {"n_heads", 3}};
  if (architecture == "dense")
    json["n_layers"] = 2;
  else
    json.update(Json{{"n_prelude", 1}, {"n_core", 2}, {"n_recurrences", 3}, {"n_coda", 1}});
  if (!keys.is_null()) json.update(keys);
  return json;
}

std::unique_ptr<LanguageModel> build(const Json& json, DType dtype = DType::f32) { return test::build(json, dtype); }

// mor: so that routers tell tokens further apart than a difference's step moves them; a choice that changes on the way
// has no derivative. poisson: its state begins near 0, where a norm is steep.
void enlarge(const Params& params) {
  for (const Param& p : params.all())
    if (p.decayed()) test::cpu().kernels().multiply({p.var.value()}, p.var.value(), 20);
}

using test::tokens;

// Moves what begins as constants (biases, norms, the low-rank B, without which A has no gradient) away from them.
void unsettle(Params& params) {
  std::uint32_t site = 0;
  for (const Param& p : params.all()) {
    const NoiseKey key{11, 0, site++};
    if (p.init.std != 0) continue;
    visit_real(p.var.value().dtype(), [&]<class T>() {
      for (std::int64_t i = 0; i < p.shape.numel(); ++i)
        p.var.value().data<T>()[i] += static_cast<T>(0.2f * random_normal(key, static_cast<std::uint64_t>(i)));
    });
  }
}

// The gradient block after one forward and backward pass, and the loss.
std::pair<Tensor, Tensor> gradients(LanguageModel& model, const Pass& pass, int depth, std::int64_t batch = 2) {
  model.params().clear_gradients();
  Tape tape;
  Var loss;
  {
    Record on(&tape);
    loss = model.loss(tokens(batch, 6, 1), tokens(batch, 6, 2), depth, pass);
  }
  const Tensor value = loss.value().clone();
  tape.backward(loss, visit_real(value.dtype(), [&]<class T>() {
                  const T one = 1;
                  return Tensor::from<T>({1}, std::span(&one, 1), test::cpu());
                }));
  model.params().complete_gradients();
  return {model.params().gradients().clone(), value};
}

const std::vector<Json> kToys = {
    toy("dense"),
    toy("dense", {{"bias", true}, {"gelu", "tanh"}}),
    toy("grt"),
    toy("grt", {{"gate_concat_norm", true}, {"gate_temperature", 0.8}}),
    toy("grt", {{"use_gate", false}}),
    toy("grt", {{"use_injection", false}, {"bias", true}}),
    toy("grt", {{"n_prelude", 0}, {"n_coda", 0}}),
    toy("poisson"),
    toy("poisson", {{"initial_state", "zero"}, {"bias", true}, {"n_prelude", 0}, {"n_coda", 0}}),
    toy("mor"),
    toy("mor", {{"router_type", "mlp"}, {"bias", true}, {"n_prelude", 0}, {"n_coda", 0}, {"router_aux_weight", 1.0}}),
    toy("rrt", {{"lora_rank", 2}, {"lora_alpha", 3}}),
    toy("rrt", {{"bias", true}, {"n_prelude", 0}, {"n_coda", 0}}),
    toy("ouro"),
    toy("ouro", {{"bias", true}, {"entropy_weight", 0.3}}),
    toy("ouro", {{"n_recurrences", 1}, {"n_coda", 0}}),
};

TEST_SUITE("models") {
  TEST_CASE("the gradient of every parameter of every toy model agrees with differences, with noise, at full depth") {
    for (const Json& json : kToys) {
      CAPTURE(json.dump());
      auto model = build(json, DType::f64);
      unsettle(model->params());
      if (json["architecture"] == "mor" || json["architecture"] == "poisson") enlarge(model->params());
      const Pass pass{.training = true, .key = {3, 0, 0}};
      std::vector<Checked> checked;
      for (const Param& p : model->params().all()) checked.push_back({p.name, p.var});
      model->params().clear_gradients();
      const GradReport report =
          gradcheck([&] { return model->loss(tokens(2, 5, 1), tokens(2, 5, 2), model->depths().full, pass); }, checked);
      CAPTURE(report.where);
      CHECK(report.worst <= 1e-5);
    }
  }

  TEST_CASE("recomputation changes no gradient by a bit") {
    for (const Json& json : kToys) {
      CAPTURE(json.dump());
      auto model = build(json);
      unsettle(model->params());
      Pass pass{.training = true, .key = {9, 0, 0}};
      const auto [plain, plain_loss] = gradients(*model, pass, model->depths().full);
      pass.recompute = true;
      const auto [again, again_loss] = gradients(*model, pass, model->depths().full);
      CHECK(test::same_bits(plain, again));
      CHECK(test::same_bits(plain_loss, again_loss));
    }
  }

  TEST_CASE("gradients of micro-batches add up to those of the whole batch") {
    for (const char* architecture : {"dense", "grt", "poisson", "mor", "rrt", "ouro"}) {
      auto model = build(toy(architecture), DType::f64);
      const auto run = [&](std::int64_t pieces) {
        model->params().clear_gradients();
        const Tensor in = tokens(4, 6, 1), out = tokens(4, 6, 2);
        const std::int64_t rows = 4 / pieces;
        for (std::int64_t i = 0; i < pieces; ++i) {
          Tape tape;
          Var loss;
          {
            Record on(&tape);
            loss = model->loss(in.rows(i * rows, rows), out.rows(i * rows, rows), model->depths().full, {});
          }
          const double share = 1.0 / static_cast<double>(pieces);
          tape.backward(loss, Tensor::from<double>({1}, std::span(&share, 1), test::cpu()));
        }
        return model->params().gradients().clone();
      };
      const Tensor whole = run(1);
      CHECK(test::largest_difference(whole, run(2)) < 1e-15);
      CHECK(test::largest_difference(whole, run(4)) < 1e-15);
    }
  }

  TEST_CASE("one, two and three threads give the same bits") {
    for (const char* architecture : {"dense", "grt", "poisson", "mor", "rrt", "ouro"}) {
      auto model = build(toy(architecture, {{"d_model", 48}, {"vocab_size", 97}, {"padded_vocab_size", 128}}));
      const Pass pass{.training = true, .key = {9, 0, 0}};
      const int before = thread_count();
      std::vector<Tensor> results;
      for (const int threads : {1, 2, 3}) {
        set_thread_count(threads);
        results.push_back(gradients(*model, pass, model->depths().full, 3).first);
      }
      set_thread_count(before);
      CHECK(test::same_bits(results[0], results[1]));
      CHECK(test::same_bits(results[0], results[2]));
    }
  }

  TEST_CASE("a step that repeats an earlier one asks the system for no memory, for scratch memory either") {
    const int threads = thread_count();
    set_thread_count(1);  // with more, one may get its first large product late
    for (const DType products : {DType::f32, DType::bf16}) {
      const std::unique_ptr<Device> device = open_cpu(products);
      auto model = test::build(toy("grt"), DType::f32, 5, *device);
      const Pass pass{.training = true, .key = {9, 0, 0}};
      for (const int depth : {3, 2}) gradients(*model, pass, depth);
      const std::size_t before = device->system_calls(), scratch = cpu::Scratch::system_calls();
      for (const int depth : {3, 2, 1, 3}) gradients(*model, pass, depth);
      CHECK(device->system_calls() == before);
      CHECK(cpu::Scratch::system_calls() == scratch);
    }
    set_thread_count(threads);
  }

  TEST_CASE("the core is one set of weights: the number of parameters does not depend on R, applications do") {
    const auto shallow = make_model(toy("grt", {{"n_recurrences", 2}}), "test");
    const auto deep = make_model(toy("grt", {{"n_recurrences", 9}}), "test");
    CHECK(shallow->params().count() == deep->params().count());
    CHECK(shallow->applications(2).size() == 1 + 2 * 2 + 1);
    CHECK(deep->applications(9).size() == 1 + 2 * 9 + 1);
    const auto names = deep->applications(9);
    CHECK(std::set<std::string>(names.begin(), names.end()) ==
          std::set<std::string>{"prelude.0", "core.0", "core.1", "coda.0"});
  }

  TEST_CASE("changing one core weight changes the state of every recurrence") {
    auto model = build(toy("grt", {{"gate_bias", 0.0}}));
    const auto states = [&] {
      std::vector<Tensor> all;
      const std::vector<int> depths{0, 1, 2, 3};
      model->exits(tokens(1, 6, 1), depths, {}, [&](int, const Var& z) { all.push_back(z.value().clone()); });
      return all;
    };
    const auto before = states();
    model->params().find("core.0.mlp.c_fc.weight")->var.value().data<float>()[0] += 1;
    const auto after = states();
    CHECK(test::same_bits(before[0], after[0]));
    for (int depth = 1; depth <= 3; ++depth) CHECK_FALSE(test::same_bits(before[depth], after[depth]));
  }

  TEST_CASE("the head is the embedding: one tensor, counted once, with the gradients of both uses") {
    auto model = build(toy("dense"), DType::f64);
    CHECK(model->params().find("lm_head.weight") == nullptr);
    const Tensor z = model->hidden(tokens(1, 3, 1), 2, {}).value().clone();
    const double before = test::values(model->logits(z))[12];
    const Tensor& wte = model->params().find("wte.weight")->var.value();
    for (int c = 0; c < 12; ++c) wte.data<double>()[12 * 12 + c] += 1;  // row 12
    CHECK(test::values(model->logits(z))[12] != before);
    gradients(*model, {}, 2);
    const Tensor& grad = model->params().find("wte.weight")->var.grad();
    double padding = 0;
    for (int i = 13 * 12; i < 16 * 12; ++i) padding += std::abs(grad.data<double>()[i]);
    CHECK(padding == 0);
  }

  TEST_CASE("exits in one pass equal exits one by one, and more than R recurrences are allowed") {
    auto model = build(toy("grt", {{"gate_bias", 0.0}}));
    const Tensor in = tokens(2, 6, 1);
    const std::vector<int> depths{0, 2, 5};
    model->exits(in, depths, {}, [&](int depth, const Var& z) {
      CHECK(test::same_bits(z.value(), model->hidden(in, depth, {}).value()));
    });
    CHECK(test::contains(test::error_of([&] { model->hidden(in, -1, {}); }), "depth -1"));
    auto dense = build(toy("dense"));
    CHECK(test::contains(test::error_of([&] { dense->hidden(in, 3, {}); }), "1..2"));
    CHECK(test::contains(test::error_of([&] { dense->hidden(in, 0, {}); }), "1..2"));
    for (const char* architecture : {"rrt", "ouro"}) {
      auto bounded = build(toy(architecture));
      bounded->exits(in, std::vector<int>{1, 2, 3}, {}, [&](int depth, const Var& z) {
        CHECK(test::same_bits(z.value(), bounded->hidden(in, depth, {}).value()));
      });
      for (const int depth : {0, 4})
        CHECK(test::contains(test::error_of([&] { bounded->loss(in, in, depth, {}); }), "1..3"));
    }
  }

  TEST_CASE("noise acts in training only, is a function of its key, and never touches the carried state") {
    auto model = build(toy("grt"));
    const Tensor in = tokens(1, 6, 1);
    const auto run = [&](bool training, std::uint64_t seed) {
      return model->hidden(in, 3, {.training = training, .key = {seed, 0, 0}}).value();
    };
    CHECK(test::same_bits(run(false, 1), run(false, 2)));
    CHECK(test::same_bits(run(true, 1), run(true, 1)));
    CHECK_FALSE(test::same_bits(run(true, 1), run(true, 2)));
    CHECK_FALSE(test::same_bits(run(true, 1), run(false, 1)));
    // The noise of a micro-batch is that of its key, whatever was computed before; each of its rows has its own.
    const std::vector<std::int32_t> same(12, 3);
    const Pass keyed{.training = true, .key = {1, 0, 0}};
    const Tensor rows = model->hidden(Tensor::from<std::int32_t>({2, 6}, same, test::cpu()), 3, keyed).value();
    CHECK_FALSE(test::same_bits(rows.range(0, {6, 12}), rows.range(72, {6, 12})));

    const auto quiet = build(toy("grt", {{"state_noise", 0}, {"gate_noise", 0}}));
    CHECK(test::same_bits(quiet->hidden(in, 3, keyed).value(), quiet->hidden(in, 3, {}).value()));

    const Pass kept{.training = true, .key = {1, 0, 0}, .forced_gate = 1.0f};
    CHECK(test::same_bits(model->hidden(in, 3, kept).value(), model->hidden(in, 0, {}).value()));
  }

  TEST_CASE(
      "initial values: N(0, 0.02), projections by 1/sqrt(2L), gate bias 4, padding zero, a function of the name") {
    auto model = build({{"architecture", "grt"},
                        {"vocab_size", 200},
                        {"d_model", 96},
                        {"n_heads", 4},
                        {"context_length", 64},
                        {"n_recurrences", 6},
                        {"n_core", 1}});
    const auto moments = [&](const char* name, std::int64_t rows) {
      const Param* p = model->params().find(name);
      const auto v = test::values(p->var.value());
      const std::int64_t n = rows * p->shape.last();
      double sum = 0, squares = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += v[i], squares += v[i] * v[i];
      return std::pair{sum / n, std::sqrt(squares / n)};
    };
    const double proj = 0.02 / std::sqrt(2.0 * 8);
    for (const auto& [name, rows, std] : {std::tuple{"wte.weight", 200, 0.02},
                                          {"core.0.mlp.c_fc.weight", 384, 0.02},
                                          {"inject.weight", 96, 0.02},
                                          {"gate.fc_in.weight", 96, 0.02},
                                          {"core.0.attn.c_proj.weight", 96, proj},
                                          {"coda.0.mlp.c_proj.weight", 96, proj}}) {
      CAPTURE(name);
      const auto [mean, spread] = moments(name, rows);
      CHECK(std::abs(mean) < 5 * std / std::sqrt(rows * 96.0));
      CHECK(spread == doctest::Approx(std).epsilon(0.03));
    }
    for (const double b : test::values(model->params().find("gate.fc_out.bias")->var.value())) CHECK(b == 4);
    const auto wte = test::values(model->params().find("wte.weight")->var.value());
    for (std::size_t i = 200 * 96; i < wte.size(); ++i) CHECK(wte[i] == 0);

    auto other = build({{"architecture", "grt"},
                        {"vocab_size", 200},
                        {"d_model", 96},
                        {"n_heads", 4},
                        {"context_length", 64},
                        {"n_recurrences", 6},
                        {"n_core", 2},
                        {"n_coda", 0}});
    CHECK(test::same_bits(model->params().find("core.0.mlp.c_fc.weight")->var.value(),
                          other->params().find("core.0.mlp.c_fc.weight")->var.value()));
  }

  TEST_CASE("presets have the parameter counts, initial spreads and FLOPs of the reference") {
    const auto rows = nlohmann::json::parse(read_file(test::fixture("modules.json"))).at("presets").at("rows");
    int known = 0;
    const auto names = preset_names();
    for (const auto& row : rows) {
      const auto name = row.at("preset").get<std::string>();
      if (std::find(names.begin(), names.end(), name) == names.end()) continue;
      ++known;
      CAPTURE(name);
      Json json = find_model(name);
      if (row.value("gate_concat_norm", false)) json["gate_concat_norm"] = true;
      const auto model = make_model(json, name);
      CHECK(model->params().count() == row.at("parameters").get<std::int64_t>());
      CHECK(static_cast<int>(model->applications(model->depths().full).size()) ==
            row.at("block_applications").get<int>());
      const Param* proj =
          model->params().find(name.starts_with("gpt2") ? "h.0.attn.c_proj.weight" : "core.0.attn.c_proj.weight");
      CHECK(proj->init.std == doctest::Approx(row.at("c_proj_init_std").get<double>()).epsilon(1e-9));
      const Flops flops = model->flops(1024, model->depths().full);
      CHECK(flops.paper_body == row.value("paper_flops_per_token", row.at("block_flops_per_token").get<double>()));
      CHECK(flops.paper_head == row.at("head_flops_per_token").get<double>());
    }
    CHECK(known == 39);
  }

  TEST_CASE("the four published counts, with the LayerNorm over the gate's input") {
    for (const auto& [name, count] : {std::pair{"grt-medium", 171'073'536},
                                      {"grt-medium-isoparam", 359'847'936},
                                      {"grt-large", 290'196'480},
                                      {"grt-large-isoparam", 781'780'480}}) {
      Json json = find_model(name);
      const auto plain = make_model(json, name);
      json["gate_concat_norm"] = true;
      const auto published = make_model(json, name);
      CHECK(published->params().count() == count);
      CHECK(plain->params().count() == count - 2 * json["d_model"].get<std::int64_t>());
    }
  }

  TEST_CASE("a configuration is read strictly") {
    const std::vector<std::pair<Json, std::string>> bad = {
        {toy("dense", {{"n_layer", 3}}), "no key \"n_layer\""},
        {toy("dense", {{"n_recurrences", 3}}), "no key \"n_recurrences\""},
        {toy("grt", {{"n_layers", 3}}), "no key \"n_layers\""},
        {toy("dense", {{"n_heads", 0}}), "n_heads must be 1.."},
        {toy("dense", {{"n_heads", 5}}), "not a multiple of n_heads 5"},
        {toy("dense", {{"n_layers", 100000}}), "n_layers must be"},
        {toy("dense", {{"context_length", 1ll << 31}}), "context_length must be"},
        {toy("grt", {{"n_core", 4096}, {"n_recurrences", 4096}}), "block applications"},
        {toy("dense", {{"d_model", "12"}}), "d_model must be a whole number"},
        {toy("dense", {{"d_model", 12.5}}), "d_model must be a whole number"},
        {toy("dense", {{"n_heads", 1ll << 40}}), "out of range"},
        {toy("dense", {{"bias", 1}}), "bias must be true or false"},
        {toy("dense", {{"gelu", "relu"}}), "gelu must be erf or tanh"},
        {toy("dense", {{"vocab_size", 70000}}), "vocab_size must be"},
        {toy("dense", {{"padded_vocab_size", 12}}), "padded_vocab_size must be"},
        {toy("grt", {{"gate_temperature", 0}}), "gate_temperature must be 1e-6"},
        {toy("grt", {{"state_noise", -0.1}}), "state_noise must be"},
        {toy("grt", {{"r_min", 4}}), "r_min must be 0..3"},
        {toy("poisson", {{"initial_state", "one"}}), "initial_state must be random or zero"},
        {toy("poisson", {{"backprop_steps", 0}}), "backprop_steps must be 1.."},
        {toy("poisson", {{"r_min", 1}}), "no key \"r_min\""},
        {toy("mor", {{"router_type", "conv"}}), "router_type must be linear or mlp"},
        {toy("mor", {{"router_scale", -1}}), "router_scale must be"},
        {toy("mor", {{"backprop_steps", 1}}), "no key \"backprop_steps\""},
        {toy("rrt", {{"lora_rank", 0}}), "lora_rank must be 1..12"},
        {toy("ouro", {{"entropy_weight", -1}}), "entropy_weight must be"},
        {toy("rrt", {{"state_noise", 0}}), "no key \"state_noise\""},
        {toy("rnn"), "architecture must be dense, grt, poisson, mor, rrt or ouro"},
        {Json{{"d_model", 12}}, "\"architecture\" is missing"},
        {Json::array(), "must be a JSON object"},
    };
    for (const auto& [json, part] : bad) {
      CAPTURE(json.dump());
      const std::string error = test::error_of([&] { make_model(json, "c.json"); });
      CAPTURE(error);
      CHECK(test::contains(error, "c.json"));
      CHECK(test::contains(error, part));
    }
    CHECK(test::contains(test::error_of([] { find_model("gpt9"); }), "gpt2-small"));
  }

  TEST_CASE("a configuration written and read again is the same, defaults filled in") {
    for (const std::string& name : preset_names()) {
      const Json json = make_model(find_model(name), name)->config_json();
      CHECK(make_model(json, name)->config_json() == json);
      CHECK(json["padded_vocab_size"].get<int>() % 64 == 0);
    }
  }

  TEST_CASE("uniform depths: every depth of r_min..R equally often, a function of the key") {
    const DepthRule rule{"uniform", 2, 6};
    std::vector<int> seen(8);
    for (std::uint32_t step = 0; step < 10000; ++step) {
      const int r = rule.draw({7, step, 0});
      CHECK(r == rule.draw({7, step, 0}));
      REQUIRE(r >= 2);
      REQUIRE(r <= 6);
      ++seen[r];
    }
    for (int r = 2; r <= 6; ++r) CHECK(std::abs(seen[r] - 2000) < 5 * std::sqrt(10000 * 0.2 * 0.8));
    CHECK(rule.mean() == 4);
    CHECK(DepthRule{"fixed", 1, 6}.draw({7, 1, 0}) == 6);
    CHECK(test::contains(test::error_of([] { DepthRule{"normal", 1, 6}.check_valid(0); }), "--depth-sampler"));
    CHECK(test::contains(test::error_of([] { DepthRule{"uniform", 3, 2}.check_valid(0); }), "--depth"));
  }
}

}  // namespace
}  // namespace grt
