// gradcheck: every operation's and every model parameter's derivative against central differences in f64; or, with
// --checkpoint, the gradients of one batch, written to a file for comparison with another implementation.
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "autograd/gradcheck.h"
#include "core/flags.h"
#include "core/main.h"
#include "core/safetensors.h"
#include "ops/cases.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/device.h"
#include "train/host.h"
#include "train/optimizer.h"

namespace grt {
namespace {

// Differences in f64 are good to about 1e-9 for one operation. A whole model chains dozens, and some of its derivatives
// are small beside the rounding of its loss.
constexpr double kOperationBar = 1e-6, kModelBar = 1e-5;

struct Options {
  std::string op;
  std::optional<std::string> checkpoint, data, output;
  std::int64_t batch_size = 2;
  std::optional<int> depth;

  template <class V>
  void fields(V&& v) {
    v("op", op, "check this operation alone (default: all operations and models)");
    v("checkpoint", checkpoint, "write the gradients of this model instead, for one batch of --data");
    v("data", data, "with --checkpoint: token file, directory of shards or glob");
    v("output", output, "with --checkpoint: safetensors file, each gradient under its parameter's name");
    v("batch-size", batch_size, "with --checkpoint: the first so many whole windows are the batch");
    v("depth", depth, "with --checkpoint: exit whose loss is differentiated (default: full depth)");
  }
};

struct Tally {
  int checked = 0, failed = 0;

  void add(const std::string& name, const GradReport& report, double bar) {
    const bool good = report.worst <= bar;  // a NaN is not
    ++checked;
    failed += !good;
    fmt::print("  {:<64}{:>9.1e}  {}{}\n", name, report.worst, report.where, good ? "" : "  WRONG");
  }
};

// --- operations ---

void check_operations(const std::string& only, Device& device, Tally& tally) {
  std::set<std::string> names;
  for (const OpCase& c : op_cases())
    if (c.differentiable) names.insert(c.op);
  check(only.empty() || names.count(only), "--op: no operation \"{}\"; there are {}", only, fmt::join(names, ", "));

  fmt::print("operations on {}: worst relative error (at most {:.0e}) and where\n", device.name(), kOperationBar);
  for (const OpCase& c : op_cases()) {
    if (!c.differentiable || (!only.empty() && c.op != only)) continue;
    const std::vector<Var> inputs = make_inputs(c, DType::f64, device);
    std::vector<Checked> checked;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].wants_grad()) checked.push_back({fmt::format("input {}", i), inputs[i]});
    tally.add(c.name(), gradcheck([&] { return c.run(inputs); }, checked), kOperationBar);
  }
}

// --- models ---

struct ToyModel {
  std::string name;
  Json config;
  bool recompute = false;
};

Json toy(const char* architecture, const Json& keys) {
  Json json = {{"architecture", architecture}, {"vocab_size", 11}, {"padded_vocab_size", 16},
               {"context_length", 6},          {"d_model", 8},     {"n_heads", 2}};
  json.update(architecture == std::string("dense")
                  ? Json{{"n_layers", 2}}
                  : Json{{"n_prelude", 1}, {"n_core", 1}, {"n_recurrences", 3}, {"n_coda", 1}});
  json.update(keys);
  return json;
}

std::vector<ToyModel> toy_models() {
  const Json plain = Json::object();
  return {
      {"dense", toy("dense", plain)},
      {"dense, recomputed", toy("dense", plain), true},
      {"dense, bias, tanh", toy("dense", {{"bias", true}, {"gelu", "tanh"}})},
      {"grt", toy("grt", plain)},
      {"grt, recomputed", toy("grt", plain), true},
      {"grt, two core blocks, temperature 0.8, bias",
       toy("grt", {{"n_core", 2}, {"gate_temperature", 0.8}, {"bias", true}})},
      {"grt, gate_concat_norm", toy("grt", {{"gate_concat_norm", true}})},
      {"grt, gate_concat_norm, recomputed", toy("grt", {{"gate_concat_norm", true}}), true},
      {"grt, no gate", toy("grt", {{"use_gate", false}})},
      {"grt, no injection", toy("grt", {{"use_injection", false}})},
      {"grt, neither, no noise", toy("grt", {{"use_gate", false}, {"use_injection", false}, {"state_noise", 0.0}})},
      {"grt, no prelude, no coda", toy("grt", {{"n_prelude", 0}, {"n_coda", 0}})},
      {"poisson", toy("poisson", plain)},
      {"poisson, recomputed", toy("poisson", plain), true},
      {"poisson, two core blocks, zero state, bias",
       toy("poisson", {{"n_core", 2}, {"initial_state", "zero"}, {"bias", true}})},
      {"poisson, no prelude, no coda", toy("poisson", {{"n_prelude", 0}, {"n_coda", 0}, {"n_recurrences", 2}})},
      {"mor", toy("mor", {{"router_scale", 0.5}, {"router_aux_weight", 0.1}})},
      {"mor, recomputed", toy("mor", plain), true},
      {"mor, two layers in a router, two core blocks, bias, tanh",
       toy("mor", {{"router_type", "mlp"}, {"n_core", 2}, {"bias", true}, {"gelu", "tanh"}})},
      {"mor, no prelude, no coda", toy("mor", {{"n_prelude", 0}, {"n_coda", 0}, {"router_aux_weight", 1.0}})},
      {"rrt", toy("rrt", {{"lora_rank", 2}, {"lora_alpha", 3}, {"bias", true}})},
      {"rrt, recomputed", toy("rrt", {{"n_core", 2}, {"lora_rank", 2}, {"lora_alpha", 3}}), true},
      {"ouro", toy("ouro", {{"bias", true}})},
      {"ouro, recomputed", toy("ouro", {{"n_core", 2}, {"entropy_weight", 0.3}}), true},
      {"ouro, one exit", toy("ouro", {{"n_recurrences", 1}})},
  };
}

// Larger than a training run begins with, so that every part matters: the gate is not shut, no norm is trivial.
void set_parameters(Params& params) {
  std::uint32_t site = 0;
  for (const Param& p : params.all()) {
    const NoiseKey key{3, 0, site++};
    const double mean = p.init.mean == 1 ? 1 : 0;
    double* values = p.var.value().data<double>();
    for (std::int64_t i = 0; i < p.used_rows * (p.shape.numel() / p.shape[0]); ++i)
      values[i] = mean + 0.3 * random_normal(key, i);
  }
}

Tensor toy_ids(std::int64_t n, std::int64_t vocab, std::uint32_t site, Device& device) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<std::int32_t>(random_below({5, 0, site}, i, static_cast<std::uint64_t>(vocab))));
  return Tensor::from<std::int32_t>({2, n / 2}, ids, device);
}

void check_model(const ToyModel& toy, Device& device, Tally& tally) {
  const std::unique_ptr<LanguageModel> model = make_model(toy.config, toy.name);
  model->params().allocate(device, DType::f64);
  model->params().allocate_gradients();
  set_parameters(model->params());
  const BackboneConfig& c = model->config();
  const Tensor tokens = toy_ids(2 * c.context_length, c.vocab_size, 1, device);
  const Tensor targets = toy_ids(2 * c.context_length, c.vocab_size, 2, device);
  const Pass pass{.training = true, .key = {1337, 4, 0}, .recompute = toy.recompute};
  const auto loss = [&] { return model->loss(tokens, targets, model->depths().full, pass); };

  fmt::print("{}: worst relative error (at most {:.0e}) and where\n", toy.name, kModelBar);
  for (const Param& p : model->params().all()) {
    model->params().clear_gradients();
    tally.add(p.name, gradcheck(loss, {{p.name, p.var}}), kModelBar);
  }
}

int check_all(const Options& options, Device& device) {
  Tally tally;
  check_operations(options.op, device, tally);
  if (options.op.empty())
    for (const ToyModel& toy : toy_models()) check_model(toy, device, tally);
  if (tally.failed == 0) fmt::print("all {} derivatives agree with differences\n", tally.checked);
  check(tally.failed == 0, "{} of {} derivatives are wrong", tally.failed, tally.checked);
  return 0;
}

// --- one batch ---

int write_gradients(const Options& options, Device& device, DType dtype) {
  check(options.data.has_value(), "--data: --checkpoint needs a token file to take the batch from");
  check(options.output.has_value(), "--output: --checkpoint needs a file to write the gradients to");
  check(options.batch_size >= 1, "--batch-size: must be at least 1, not {}", options.batch_size);
  const std::unique_ptr<LanguageModel> model = load_model(*options.checkpoint, device, dtype);
  Params& params = model->params();
  params.allocate_gradients();
  const std::int64_t context = model->config().context_length;
  const TokenData data = TokenData::open(*options.data, model->config().vocab_size);
  check_trainable(data, context);
  const std::int64_t windows = (data.size() - 1) / context;
  check(options.batch_size <= windows, "--batch-size: {} holds {} whole windows of {} tokens, fewer than {}",
        data.name(), windows, context, options.batch_size);

  const TrainingOrder order{.kind = DataOrder::sequential, .context_length = context, .batch_size = options.batch_size};
  const Batch batch = training_batch(data, order, 0, 0, device);
  Tape tape;
  Var loss;
  {
    Record on(&tape);
    loss = model->loss(batch.tokens, batch.targets, options.depth.value_or(model->depths().full), {});
  }
  const double value = host_values(loss.value())[0];
  const Tensor seed = visit_real(dtype, [&]<class T>() {
    const T one = 1;
    return Tensor::from<T>({1}, std::span(&one, 1), device);
  });
  check(std::isfinite(value), "{}: the loss is {}; {}", data.name(), value, blame_weights(params));
  tape.backward(loss, seed);
  params.complete_gradients();
  const std::string bad = first_bad_gradient(params);
  check(bad.empty(), "{}", bad);

  std::vector<NamedTensor> gradients;
  for (const Param& p : params.all()) gradients.push_back({p.name, p.var.grad()});
  write_safetensors(*options.output, gradients);
  fmt::print("loss {:.9g}, gradient norm {:.9g}\n", value, std::sqrt(sum_squares(params.gradients())));
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  DeviceConfig device_config;
  Flags flags("gradcheck", "Derivatives against differences; or the gradients of one batch, written to a file.");
  flags.add(options);
  flags.add(device_config);
  if (!flags.parse(argc, argv)) return 0;

  device_config.cpu_alone = !options.checkpoint;
  if (options.checkpoint) {
    check(options.op.empty(), "--op: cannot be combined with --checkpoint");
    const std::unique_ptr<Device> device = device_config.open_and_tell();
    return write_gradients(options, *device, device_config.type());
  }
  for (const char* name : {"data", "output", "batch-size", "depth", "dtype"})
    check(!flags.given(name), "--{}: has a meaning with --checkpoint alone (differences are taken in f64)", name);
  const std::unique_ptr<Device> device = device_config.open();
  return check_all(options, *device);
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("gradcheck", [&] { return grt::run(argc, argv); });
}
