// Checkpoints: what is written comes back bit for bit, a save that fails leaves the earlier ones, foreign files are
// checked before anything is used.
#include "train/checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <span>

#include "core/safetensors.h"
#include "tests/support.h"
#include "train/optimizer.h"

namespace grt {
namespace {

using test::contains;
using test::error_of;

const Json kToy{{"architecture", "grt"}, {"vocab_size", 13}, {"padded_vocab_size", 16}, {"context_length", 6},
                {"d_model", 12},         {"n_heads", 3},     {"n_recurrences", 3}};

std::unique_ptr<LanguageModel> toy(std::uint64_t seed) {
  auto model = make_model(kToy, "test");
  model->params().allocate(test::cpu(), DType::f32);
  model->params().allocate_gradients();
  model->params().initialize(seed);
  return model;
}

Moments moments_of(const LanguageModel& model, std::uint32_t site) {
  const Shape shape{model.params().extent()};
  const Tensor v = test::randn(shape, site + 1, DType::f32);
  for (float& x : std::span(v.data<float>(), static_cast<std::size_t>(v.numel()))) x *= x;
  return {test::randn(shape, site, DType::f32), v};
}

TEST_SUITE("train") {
  TEST_CASE("weights, moments and state come back bit for bit") {
    const test::TempDir dir;
    auto model = toy(1);
    const Moments moments = moments_of(*model, 10);
    const TrainerState state{12, 3456, 78, 10, 1.25, Json{{"lr", 0.1}}};
    save_checkpoint(dir.path, *model, moments, state, true, 2);

    CHECK(resolve_checkpoint(dir.path) == dir / "step-00000012");
    auto loaded = load_model(dir.path, test::cpu());
    CHECK(loaded->config_json() == model->config_json());
    for (const Param& p : model->params().all())
      CHECK(test::same_bits(p.var.value(), loaded->params().find(p.name)->var.value()));
    const Moments again = moments_of(*model, 20);
    load_moments(model->params(), again, dir / "step-00000012");
    for (const Param& p : model->params().all()) {
      CHECK(test::same_bits(moments.m.range(p.offset, p.shape), again.m.range(p.offset, p.shape)));
      CHECK(test::same_bits(moments.v.range(p.offset, p.shape), again.v.range(p.offset, p.shape)));
    }
    const TrainerState back = load_trainer_state(dir / "step-00000012");
    CHECK(back.step == 12);
    CHECK(back.tokens == 3456);
    CHECK(back.sequences == 78);
    CHECK(back.validated == 10);
    CHECK(back.best_val_loss == 1.25);
    CHECK(back.flags == state.flags);
  }

  TEST_CASE("a checkpoint is read into packed weights, padding as zeros, and is as it was") {
    const test::TempDir dir;
    Json json{{"architecture", "dense"}, {"n_layers", 1}, {"vocab_size", 70}, {"padded_vocab_size", 80},
              {"context_length", 8},     {"d_model", 64}, {"n_heads", 2}};
    auto model = make_model(json, "test");
    model->params().allocate(test::cpu(), DType::f32);
    model->params().initialize(5);
    save_checkpoint(dir.path, *model, moments_of(*model, 10), {1, 0, 0, 0, {}, Json::object()}, true, 2);
    const std::string before = read_file(dir / "step-00000001" / "model.safetensors");
    const Tensor z = test::randn({3, 64}, 1, DType::f32);
    const auto logits = [&](std::optional<DType> packed) {
      return load_model(dir.path, test::cpu(), DType::f32, packed)->logits(z);
    };
    const Tensor exact = logits({}), rounded = logits(DType::packed_int8);
    CHECK(test::same_bits(logits(DType::packed_f32), exact));
    const double apart = test::largest_difference(rounded, exact);
    CHECK(apart > 0);
    CHECK(apart < 0.02);  // 64 products of a standard normal and an error of at most 0.08 / 254
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t j = 70; j < 80; ++j) CHECK(rounded.data<float>()[row * 80 + j] == 0);
    CHECK(read_file(dir / "step-00000001" / "model.safetensors") == before);
  }

  TEST_CASE("the newest `keep` checkpoints stay, and the best one") {
    const test::TempDir dir;
    auto model = toy(1);
    const Moments moments = moments_of(*model, 10);
    for (int step = 1; step <= 5; ++step)
      save_checkpoint(dir.path, *model, moments, {step, 0, 0, 0, {}, Json::object()}, step == 2, 2);
    CHECK(read_file(dir / "latest") == "step-00000005\n");
    CHECK(read_file(dir / "best") == "step-00000002\n");
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir.path)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"best", "latest", "step-00000002", "step-00000004", "step-00000005"});
  }

  TEST_CASE("a save that runs into a full disk is a named error and leaves the checkpoint before it") {
    const test::TempDir dir;
    auto model = toy(1);
    const Moments moments = moments_of(*model, 10);
    save_checkpoint(dir.path, *model, moments, {1, 0, 0, 0, {}, Json::object()}, false, 2);
    const std::string before = read_file(dir / "step-00000001" / "model.safetensors");

    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{1024, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string error = error_of([&] {
      save_checkpoint(dir.path, *model, moments, {2, 0, 0, 0, {}, Json::object()}, false, 2);
    });
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, SIG_DFL);

    CHECK(contains(error, "model.safetensors"));
    CHECK(resolve_checkpoint(dir.path) == dir / "step-00000001");
    CHECK(read_file(dir / "step-00000001" / "model.safetensors") == before);
    int entries = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path)) ++entries;
    CHECK(entries == 2);  // step-00000001 and latest: nothing half-made is left
  }

  TEST_CASE("an interrupted save leaves a directory that nobody takes for a checkpoint, and the next one removes it") {
    const test::TempDir dir;
    auto model = toy(1);
    const Moments moments = moments_of(*model, 10);
    save_checkpoint(dir.path, *model, moments, {1, 0, 0, 0, {}, Json::object()}, false, 2);
    make_directories(dir / ".step-00000002.tmp-1");
    write_file(dir / ".step-00000002.tmp-1" / "config.json", "{");
    CHECK(resolve_checkpoint(dir.path) == dir / "step-00000001");
    save_checkpoint(dir.path, *model, moments, {3, 0, 0, 0, {}, Json::object()}, false, 2);
    CHECK_FALSE(fs::exists(dir / ".step-00000002.tmp-1"));
  }

  TEST_CASE("a state that a run cannot go on from is named: entry, what is expected, what is there") {
    const test::TempDir dir;
    auto model = toy(1);
    const Moments moments = moments_of(*model, 10);
    save_checkpoint(dir.path, *model, moments, {12, 3456, 78, 10, 1.25, Json{{"lr", 0.1}}}, true, 2);
    const fs::path file = dir / "step-00000012/trainer.json";
    const Json right = read_json(file.string());
    const auto error_with = [&](const char* key, const Json& value) {
      Json wrong = right;
      wrong[key] = value;
      if (value.is_discarded()) wrong.erase(key);
      write_file(file, wrong.dump());
      return error_of([&] { load_trainer_state(dir / "step-00000012"); });
    };
    const std::string name = file.string() + ": ";
    CHECK(error_with("step", "x") == name + "step must be a whole number from 0 to 2^53, not \"x\"");
    CHECK(error_with("tokens", -1) == name + "tokens must be a whole number from 0 to 2^53, not -1");
    CHECK(error_with("validated", 1.5) == name + "validated must be a whole number from 0 to 2^53, not 1.5");
    CHECK(error_with("sequences", Json(Json::value_t::discarded)) ==
          name + "sequences must be a whole number from 0 to 2^53, not null");
    CHECK(contains(error_with("tokens", std::numeric_limits<std::int64_t>::max()), "tokens must be a whole number"));
    CHECK(error_with("flags", 3) == name + "flags must be an object, not 3");
    CHECK(error_with("best_val_loss", "low") == name + "best_val_loss must be a number or null, not \"low\"");
    CHECK(error_with("step", 13) == name + "step is 13, but that of its directory is 12");
    write_file(file, right.dump());
    CHECK(load_trainer_state(dir / "step-00000012").step == 12);

    moments.v.data<float>()[3] = std::numeric_limits<float>::infinity();
    save_checkpoint(dir.path, *model, moments, {13, 0, 0, 0, {}, Json::object()}, true, 2);
    const std::string error = error_of([&] { load_moments(model->params(), moments, dir / "step-00000013"); });
    CHECK(contains(error, "step-00000013/optimizer.safetensors: v."));
    CHECK(contains(error, "1 of "));
    CHECK(contains(error, " values are NaN or infinite"));

    moments.v.data<float>()[3] = -0.5f;
    save_checkpoint(dir.path, *model, moments, {14, 0, 0, 0, {}, Json::object()}, true, 2);
    CHECK(contains(error_of([&] { load_moments(model->params(), moments, dir / "step-00000014"); }),
                   " has -0.5, where a mean of squares is 0 or more"));
  }

  TEST_CASE("what is no checkpoint is named") {
    const test::TempDir dir;
    CHECK(contains(error_of([&] { resolve_checkpoint(dir / "none"); }), "none"));
    CHECK(contains(error_of([&] { resolve_checkpoint(dir.path); }), "latest"));
    write_file(dir / "latest", "../../etc\n");
    CHECK(contains(error_of([&] { resolve_checkpoint(dir.path); }), "../../etc"));
    write_file(dir / "latest", "step-00000009\n");
    CHECK(contains(error_of([&] { resolve_checkpoint(dir.path); }), "step-00000009"));
  }

  TEST_CASE("weights that do not fit the model are named: missing, left over, of another shape") {
    const test::TempDir dir;
    auto model = toy(1);
    const auto write = [&](const std::function<void(std::vector<NamedTensor>&)>& change) {
      std::vector<NamedTensor> tensors;
      for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value()});
      change(tensors);
      write_safetensors(dir / "model.safetensors", tensors);
    };
    const auto load = [&] { load_parameters(model->params(), dir / "model.safetensors"); };

    write([](auto& t) { t.erase(t.begin() + 3); });
    CHECK(contains(error_of(load), model->params().all()[3].name));
    write([](auto& t) { t.push_back({"surplus.weight", test::randn({2}, 1, DType::f32)}); });
    CHECK(contains(error_of(load), "surplus.weight"));
    write([](auto& t) { t[0].tensor = test::randn({2, 3}, 1, DType::f32); });
    CHECK(contains(error_of(load), "wte.weight"));
  }

  TEST_CASE("a head stored a second time is accepted when it equals wte and refused when it does not") {
    const test::TempDir dir;
    auto model = toy(1);
    std::vector<NamedTensor> tensors;
    for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value()});
    tensors.push_back({"lm_head.weight", model->params().find("wte.weight")->var.value().clone()});
    write_safetensors(dir / "equal.safetensors", tensors);
    load_parameters(model->params(), dir / "equal.safetensors");
    tensors.back().tensor.data<float>()[5] += 1;
    write_safetensors(dir / "other.safetensors", tensors);
    CHECK(contains(error_of([&] { load_parameters(model->params(), dir / "other.safetensors"); }), "lm_head.weight"));
  }

  TEST_CASE("rows of padding are zero after loading, whatever the file holds") {
    const test::TempDir dir;
    auto model = toy(1);
    std::vector<NamedTensor> tensors;
    for (const Param& p : model->params().all()) tensors.push_back({p.name, p.var.value().clone()});
    tensors[0].tensor.data<float>()[15 * 12] = 7;  // wte, row 15 of 16, vocabulary 13
    write_safetensors(dir / "model.safetensors", tensors);
    load_parameters(model->params(), dir / "model.safetensors");
    CHECK(model->params().find("wte.weight")->var.value().data<float>()[15 * 12] == 0);
  }

  TEST_CASE(
      "decay reaches every matrix once and no vector; the norm is the whole gradient's, and updates nothing if not "
      "finite") {
    auto model = toy(1);
    Params& params = model->params();
    Optimizer optimizer(params, {0.9, 0.95, 1e-8, 0.1, 1.0});
    params.clear_gradients();
    params.complete_gradients();  // all zero: only decay moves anything
    const Tensor before = params.values().clone();
    CHECK(optimizer.update(0, 0.5) == 0);
    for (const Param& p : params.all()) {
      const auto was = test::values(before.range(p.offset, p.shape)), is = test::values(p.var.value());
      const double factor = p.shape.rank() >= 2 ? 1 - 0.5 * 0.1 : 1.0;
      for (std::size_t i = 0; i < is.size(); ++i) CHECK(is[i] == doctest::Approx(was[i] * factor).epsilon(1e-6));
    }

    const Tensor gradient = test::randn({params.extent()}, 3, DType::f32);
    double squares = 0;
    for (const Param& p : params.all()) {
      const Tensor g = gradient.range(p.offset, p.shape);
      test::cpu().copy(p.var.sink().into().to.raw(), g.raw(), g.bytes());
      for (const double v : test::values(g)) squares += v * v;
    }
    const double norm = optimizer.update(1, 0);
    CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));

    const Tensor last = params.values().clone();
    params.gradients().data<float>()[3] = std::numeric_limits<float>::infinity();
    CHECK(std::isinf(optimizer.update(2, 0.5)));
    CHECK(test::same_bits(params.values(), last));
  }

  TEST_CASE("the first gradient that is not finite is named, the norm before the others") {
    auto model = toy(1);
    Params& params = model->params();
    params.clear_gradients();
    params.complete_gradients();
    CHECK(first_bad_gradient(params).empty());
    params.find("prelude.0.ln_1.weight")->var.grad().data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
    CHECK(contains(first_bad_gradient(params), "prelude.0.ln_1.weight (12) (1 of 12"));
    params.find("coda.0.mlp.c_fc.weight")->var.grad().data<float>()[0] = std::numeric_limits<float>::infinity();
    CHECK(contains(first_bad_gradient(params), "coda.0.mlp.c_fc.weight"));
  }
}

}  // namespace
}  // namespace grt
