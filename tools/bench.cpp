// bench: how fast the products, the operations, training and decoding are, beside what this machine can do at best.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/main.h"
#include "core/threads.h"
#include "ops/cases.h"
#include "tools/bench_models.h"
#include "tools/bench_report.h"
#include "train/device.h"

namespace grt {
namespace {

constexpr std::array kScales = {"nano", "small", "medium", "large"};
constexpr std::array kModes = {"gemm", "attention", "ops", "train", "decode", "all"};

struct Options {
  std::vector<std::string> modes, models;
  std::string scale;
  std::int64_t batch_size = 1, tokens = 128;
  std::optional<std::int64_t> context_length;
  int rounds = 5;
  std::string filter;
  std::optional<std::string> json;
  std::optional<int> threads;
  bool on_request = false;

  template <class V>
  void fields(V&& v) {
    v("model", models,
      "train, decode: presets or config.json files (default: gpt2-small); several take turns and are compared");
    v("scale", scale,
      "train, decode: nano, small, medium or large: every model of this size, beside dense of as many block "
      "applications");
    v("batch-size", batch_size, "train: sequences of a step");
    v("context-length", context_length, "train, decode: tokens of a sequence (default: the model's)");
    v("tokens", tokens, "decode: new tokens of a round");
    v("rounds", rounds, "timings of each row, of which the median and the best are shown");
    v("filter", filter, "gemm, attention, ops: only rows whose name contains this text");
    v("json", json, "file to write all numbers to");
    v("threads", threads, "CPU threads (default: the CPUs this process may use)");
    v("on-request", on_request, "train: one step for each line on stdin, one JSON line for each step on stdout");
  }

  bool wants(const std::string& name) const { return name.find(filter) != name.npos; }
  bool chosen(const std::string& mode) const {  // "all" has the attention among the operations
    return std::any_of(modes.begin(), modes.end(),
                       [&](const std::string& m) { return m == mode || (m == "all" && mode != "attention"); });
  }
};

// --- products ---

struct Product {
  const char* name;
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, add;
};

// GPT-2 124M at 1024 tokens: y = x w^T (NT), dx = dy w (NN), dw += dy^T x (TN).
constexpr Product kProducts[] = {
    {"square 2048 NN", 2048, 2048, 2048, false, false, false},
    {"c_attn forward NT 1024 x 2304 x 768", 1024, 2304, 768, false, true, false},
    {"c_attn dx NN 1024 x 768 x 2304", 1024, 768, 2304, false, false, false},
    {"c_attn dw TN 2304 x 768 x 1024 +=", 2304, 768, 1024, true, false, true},
    {"c_proj forward NT 1024 x 768 x 768", 1024, 768, 768, false, true, false},
    {"c_fc forward NT 1024 x 3072 x 768", 1024, 3072, 768, false, true, false},
    {"c_fc dw TN 3072 x 768 x 1024 +=", 3072, 768, 1024, true, false, true},
    {"mlp.c_proj forward NT 1024 x 768 x 3072", 1024, 768, 3072, false, true, false},
    {"mlp.c_proj dx NN 1024 x 3072 x 768", 1024, 3072, 768, false, false, false},
    {"c_fc forward NT 4096 x 3072 x 768", 4096, 3072, 768, false, true, false},
    {"head forward NT 1024 x 50304 x 768", 1024, 50304, 768, false, true, false},
    {"head dx NN 1024 x 768 x 50304", 1024, 768, 50304, false, false, false},
    {"head dw TN 50304 x 768 x 1024 +=", 50304, 768, 1024, true, false, true},
    {"d384 c_attn forward NT 2048 x 1152 x 384", 2048, 1152, 384, false, true, false},
    {"d128 c_attn forward NT 2048 x 384 x 128", 2048, 384, 128, false, true, false},
    {"one token c_fc NT 1 x 3072 x 768", 1, 3072, 768, false, true, false},
    {"one token head NT 1 x 50304 x 768", 1, 50304, 768, false, true, false},
};

void bench_gemm(const Options& options, Device& device, Report& report) {
  report.begin("gemm");
  for (const Product& p : kProducts) {
    if (!options.wants(p.name)) continue;
    const OpCase values{.op = "gemm",
                        .variant = p.name,
                        .inputs = {{p.a_transposed ? Shape{p.k, p.m} : Shape{p.m, p.k}},
                                   {p.b_transposed ? Shape{p.n, p.k} : Shape{p.k, p.n}}}};
    const std::vector<Var> factors = make_inputs(values, DType::f32, device);
    const Tensor y = Tensor::zeros({p.m, p.n}, DType::f32, device);
    const Timing time = sample(options.rounds, [&] {
      return seconds_of([&] {
        device.kernels().matmul({y, p.add}, {}, {factors[0].value(), p.a_transposed},
                                {factors[1].value(), p.b_transposed}, {});
        device.sync();
      });
    });
    const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    report.add({"gemm", p.name, time, 2 * m * n * k, sizeof(float) * (m * k + k * n + m * n), 0, Json::object()});
  }
}

// --- operations ---

// Seconds of the backward pass of one run, the forward pass included where it computes the gradients.
double backward_once(const OpCase& c, const std::vector<Var>& inputs, const Tensor& seed) {
  for (const Var& v : inputs) v.clear_grad();
  Tape tape;
  Var out;
  const double forward = seconds_of([&] {
    Record on(&tape);
    out = c.run(inputs);
  });
  const double backward = seconds_of([&] {
    tape.backward(out, seed);
    seed.device().sync();
  });
  return c.gradient_in_forward ? forward + backward : backward;
}

Tensor ones(const Shape& shape, Device& device) {
  return Tensor::from<float>(shape, std::vector<float>(shape.numel(), 1.0f), device);
}

void bench_ops(const Options& options, const std::string& group, Device& device, Report& report) {
  report.begin(group);
  for (const OpCase& c : bench_cases()) {
    if ((group == "attention" && c.op != "attention") || !options.wants(c.name())) continue;
    const std::vector<Var> inputs = make_inputs(c, DType::f32, device);
    Shape shape;
    const Timing forward = sample(options.rounds, [&] {
      return seconds_of([&] {
        shape = c.run(inputs).shape();
        device.sync();
      });
    });
    report.add({group, c.name() + ", forward", forward, c.forward.flops, sizeof(float) * c.forward.elements, 0,
                Json::object()});
    if (c.backward.flops + c.backward.elements == 0) continue;  // nothing to do, or no derivative
    const Tensor seed = ones(shape, device);
    const Timing backward = sample(options.rounds, [&] { return backward_once(c, inputs, seed); });
    report.add({group, c.name() + (c.gradient_in_forward ? ", forward and backward" : ", backward"), backward,
                c.backward.flops, sizeof(float) * c.backward.elements, 0, Json::object()});
  }
}

// --- the program ---

void check_filter(const Options& options) {
  bool found = options.filter.empty();
  for (const Product& p : kProducts) found |= options.chosen("gemm") && options.wants(p.name);
  for (const OpCase& c : bench_cases())
    found |= (options.chosen("ops") || (options.chosen("attention") && c.op == "attention")) && options.wants(c.name());
  check(found, "--filter: no row's name contains \"{}\"", options.filter);
}

// The presets of a size, the dense one first: at full depth they apply equally many blocks.
std::vector<std::string> models_of(const std::string& scale) {
  check(std::find(kScales.begin(), kScales.end(), scale) != kScales.end(), "--scale: must be {}, not \"{}\"",
        fmt::join(kScales, ", "), scale);
  std::vector<std::string> models = {scale == "nano" ? "dense-nano" : "gpt2-" + scale};
  for (const char* family : {"grt", "poisson", "mor", "rrt", "ouro"}) models.push_back(family + ("-" + scale));
  return models;
}

void check_options(Options& options) {
  if (options.modes.empty()) options.modes = {"all"};
  for (const std::string& mode : options.modes)
    check(std::find(kModes.begin(), kModes.end(), mode) != kModes.end(), "what: no benchmark \"{}\"; there are {}",
          mode, fmt::join(kModes, ", "));
  check_filter(options);
  check(options.rounds >= 1, "--rounds: must be at least 1, not {}", options.rounds);
  check(options.batch_size >= 1, "--batch-size: must be at least 1, not {}", options.batch_size);
  check(options.tokens >= 1, "--tokens: must be at least 1, not {}", options.tokens);
  check(!options.context_length || *options.context_length >= 1, "--context-length: must be at least 1, not {}",
        options.context_length.value_or(0));
  check(options.models.empty() || options.scale.empty(), "--scale: names the models, as --model does; give one");
  if (!options.scale.empty()) options.models = models_of(options.scale);
  if (options.models.empty()) options.models = {"gpt2-small"};
  check(!options.on_request || (options.modes == std::vector<std::string>{"train"} && options.models.size() == 1),
        "--on-request: goes with train and one --model alone");
  if (options.json) const FileWriter probe(*options.json);  // fails now and not after the work
}

int run(int argc, char** argv) {
  Options options;
  Flags flags("bench", "Speed of products, operations, training and decoding, with shares of this machine's peak.");
  flags.positional("what", options.modes, fmt::format("{} (default: all)", fmt::join(kModes, ", ")));
  flags.add(options);
  if (!flags.parse(argc, argv)) return 0;
  check_options(options);

  const std::unique_ptr<Device> device = DeviceConfig{.threads = options.threads}.open();
  const ModelBench models{options.models, options.batch_size, options.tokens, options.context_length.value_or(0),
                          options.rounds};
  if (options.on_request) {
    train_on_request(models, *device);
    return 0;
  }
  Report report(*device);
  if (options.chosen("gemm")) bench_gemm(options, *device, report);
  if (options.chosen("attention")) bench_ops(options, "attention", *device, report);
  if (options.chosen("ops")) bench_ops(options, "ops", *device, report);
  if (options.chosen("train")) bench_train(models, *device, report);
  if (options.chosen("decode")) bench_decode(models, *device, report);
  if (options.json) {
    const Json file = {{"device", device->name()},
                       {"threads", thread_count()},
                       {"rounds", options.rounds},
                       {"results", report.rows()}};
    write_file(*options.json, file.dump(1) + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("bench", [&] { return grt::run(argc, argv); });
}
