// eval: the loss of a checkpoint on a token file or a text and its accuracy on zero-shot tasks, at any of its depths.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "core/flags.h"
#include "core/main.h"
#include "core/safetensors.h"
#include "tools/eval/report.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/device.h"
#include "train/evaluate.h"
#include "train/host.h"
#include "train/model_tokenizer.h"
#include "train/optimizer.h"
#include "train/progress.h"

namespace grt {
namespace {

struct Options {
  std::optional<std::string> checkpoint, data, text, depths, json, logits;
  std::optional<int> depth;
  std::optional<double> forced_gate;
  std::string kv = "full";
  std::int64_t stride = 0, batch_size = 8;
  std::uint64_t seed = 1337;

  template <class V>
  void fields(V&& v) {
    v("checkpoint", checkpoint,
      "a run's directory (its latest checkpoint), or a directory with config.json and "
      "model.safetensors");
    v("data", data, "token file, directory of shards or glob to evaluate on");
    v("text", text, "text file to evaluate on, encoded by the model's tokenizer as one document");
    v("depths", depths,
      "exits to evaluate besides --depth: all, full or a list such as 1,2,4; grt has exits at 0, 1, "
      "2, ..., poisson at 1, 2, ..., mor, rrt and ouro at 1..R, dense at 1..n_layers");
    v("depth", depth, "exit whose loss is reported as `loss` (default: full depth)");
    v("forced-gate", forced_gate, "grt: the gate's value everywhere, 0..1; 1 keeps the old state");
    v("kv", kv,
      "full: exact; grt, poisson, ouro: mean, last or first, the loss of decoding token by token on a cache that keeps "
      "so much of a core layer's steps");
    v("stride", stride,
      "begin a window every so many tokens and score each token in the first window that holds it; "
      "0: windows side by side");
    v("batch-size", batch_size, "windows at a time; the results do not depend on it");
    v("seed", seed, "poisson: of the random initial state, a function of the seed and the position");
    v("json", json, "file to write the results to");
    v("logits", logits, "safetensors file to write the logits of the first window to: `logits` [T, vocab_size], F32");
  }
};

// Fails now and not after the work where `path` cannot be written. A FIFO or device is left alone.
void probe_output(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) return;
  const FileWriter probe(path);
}

// A result must not replace what it is computed from.
void check_output(const char* flag, const std::string& output, const Options& options) {
  const fs::path checkpoint = resolve_checkpoint(*options.checkpoint);
  check(!lies_in(output, checkpoint), "{}: {} lies in the checkpoint {}", flag, output, checkpoint.string());
  std::vector<std::string> inputs = options.data ? token_files(*options.data) : std::vector<std::string>{};
  if (options.text) inputs.push_back(*options.text);
  for (const std::string& input : inputs)
    check(!same_place(output, input), "{}: {} is the input {}", flag, output, input);
  probe_output(output);
}

// The files to write, by flag.
std::vector<std::pair<const char*, std::optional<std::string>>> outputs(const Options& options,
                                                                        const TaskFlags& tasks) {
  return {{"--json", options.json},
          {"--logits", options.logits},
          {"--log-samples", tasks.log_samples},
          {"--harness-json", tasks.harness_json}};
}

void check_outputs(const Options& options, const TaskFlags& tasks) {
  const auto all = outputs(options, tasks);
  for (auto a = all.begin(); a != all.end(); ++a) {
    if (!a->second) continue;
    for (auto b = all.begin(); b != a; ++b)
      check(!b->second || !same_place(*a->second, *b->second), "{}, {}: both name {}", b->first, a->first, *b->second);
    check_output(a->first, *a->second, options);
  }
}

void check_flags(const Options& options, const TaskFlags& tasks) {
  check(options.checkpoint.has_value(), "--checkpoint: expected the directory of a checkpoint");
  check(!options.data || !options.text, "--data, --text: expected one of the two, not both");
  check(options.data || options.text || tasks.tasks,
        "--data, --text: expected one of the two, neither is given, nor is --tasks");
  check(kv_strategy(options.kv) == KvStrategy::full || !options.logits, "--logits: are those of --kv full, not {}",
        options.kv);
  check(!options.logits || options.data || options.text, "--logits: expected --data or --text besides");
  check_task_flags(tasks);
  check_outputs(options, tasks);
}

TokenData open_data(const Options& options, const BackboneConfig& config) {
  if (options.data) return TokenData::open(*options.data, config.vocab_size);
  const auto tokenizer = model_tokenizer(config, "evaluate ids with --data instead of --text");
  return TokenData::of(encode_file(*tokenizer, *options.text), *options.text, config.vocab_size);
}

void write_logits(const std::string& path, const LanguageModel& model, const TokenData& data, int depth,
                  const EvalOptions& eval) {
  const Window first = evaluation_windows(data.size(), model.config().context_length).front();
  const Batch batch = evaluation_batch(data, std::span(&first, 1), model.device());
  Pass pass;
  pass.forced_gate = eval.forced_gate;
  pass.key.seed = eval.seed;
  const std::vector<double> padded = host_values(model.logits(model.hidden(batch.tokens, depth, pass).value()));

  const std::int64_t V = model.config().vocab_size, Vp = model.config().padded_vocab_size;
  std::vector<float> rows;
  for (std::int64_t t = 0; t < first.targets; ++t)
    rows.insert(rows.end(), padded.begin() + t * Vp, padded.begin() + t * Vp + V);
  write_safetensors(path, {{"logits", Tensor::from<float>({first.targets, V}, rows, model.device())}},
                    {{"depth", std::to_string(depth)}});
}

void check_finite(const EvalResult& result, const std::string& data, const Params& params) {
  const auto check_loss = [&](const std::string& name, double loss) {
    if (!std::isfinite(loss)) fail("{}: {} is {}; {}", data, name, loss, blame_weights(params));
  };
  for (const auto& [at, loss] : result.by_depth) check_loss(fmt::format("the loss at depth {}", at), loss.mean);
  for (const auto& [name, loss] : result.further) check_loss(name, loss.mean);
}

// Throws Error where a loss is not finite.
EvalResult evaluate_shown(const LanguageModel& model, const TokenData& data, EvalOptions eval) {
  Progress progress(2);
  eval.progress = [&](std::int64_t done, std::int64_t all) {
    progress.live(fmt::format("window {}/{}", done, all), done, all);
    return true;
  };
  const EvalResult result = evaluate(model, data, eval);
  check_finite(result, data.name(), model.params());
  return result;
}

double bits(double nats) { return nats / std::numbers::ln2; }

void print_table(const EvalResult& result, const LanguageModel& model) {
  const bool bytes = model.config().tokenizer == "bytes";
  fmt::print("{:>6}  {:>12}  {:>12}  {:>12}{}  {:>12}\n", "depth", "loss", "std. error", "perplexity",
             bytes ? "  bits per byte" : "", "MFLOP/token");
  for (const auto& [depth, loss] : result.by_depth) {
    const Flops flops = model.flops(model.config().context_length, depth);
    fmt::print("{:>6}  {:>12.6f}  {:>12.6f}  {:>12.6g}", depth, loss.mean, loss.standard_error, std::exp(loss.mean));
    if (bytes) fmt::print("  {:>13.6f}", bits(loss.mean));
    fmt::print("  {:>12.3f}{}\n", (flops.executed_body + flops.executed_head) / 1e6,
               depth > model.depths().full ? "  deeper than trained for" : "");
  }
  for (const auto& [name, loss] : result.further)
    fmt::print("{}: {:.6f} (std. error {:.6f})\n", name, loss.mean, loss.standard_error);
}

void print_routes(const EvalResult& result) {
  if (result.depth_histogram.empty()) return;
  fmt::print("steps of a token:");
  for (const auto& [steps, share] : result.depth_histogram) fmt::print("  {}: {:.2f} %", steps, 100 * share);
  fmt::print("\n");
  if (result.router_entropy) fmt::print("mean entropy of a router's decision: {:.4f} nats\n", *result.router_entropy);
}

Json means(const EvalResult& result) {
  Json by_depth = Json::object();
  for (const auto& [at, loss] : result.by_depth) by_depth[std::to_string(at)] = loss.mean;
  return by_depth;
}

Json losses(const EvalResult& result, int depth, bool bytes) {
  const DepthLoss& loss = result.by_depth.at(depth);
  Json errors = Json::object();
  for (const auto& [at, value] : result.by_depth) errors[std::to_string(at)] = value.standard_error;
  Json json = {{"loss", loss.mean},
               {"loss_stderr", loss.standard_error},
               {"loss_by_depth", means(result)},
               {"loss_stderr_by_depth", errors},
               {"tokens", result.tokens},
               {"windows", result.windows},
               {"perplexity", std::exp(loss.mean)}};
  for (const auto& [name, further] : result.further) json[name] = further.mean;
  if (bytes) json["bits_per_byte"] = bits(loss.mean);
  return json;
}

// What the results are those of.
Json about(const Options& options, const LanguageModel& model, int depth, const DeviceConfig& device) {
  Json json = {{"depth", depth}, {"checkpoint", resolve_checkpoint(*options.checkpoint).string()}};
  if (options.data) json["data"] = *options.data;
  if (options.text) json["text"] = *options.text;
  json["stride"] = options.stride;
  json["forced_gate"] = options.forced_gate ? Json(*options.forced_gate) : Json(nullptr);
  json["kv"] = options.kv;
  json["seed"] = options.seed;
  json["dtype"] = device.dtype;
  json["config"] = model.config_json();
  return json;
}

// Prints the losses and returns them.
Json evaluate_data(const Options& options, const LanguageModel& model, const TokenData& data, const EvalOptions& eval,
                   int depth) {
  const EvalResult result = evaluate_shown(model, data, eval);
  const std::vector<Routing> routings = model.routings();
  std::vector<EvalResult> otherwise;  // under those after the first
  for (std::size_t i = 1; i < routings.size(); ++i) {
    EvalOptions other = eval;
    other.causal_routing = routings[i].causal;
    otherwise.push_back(evaluate_shown(model, data, other));
  }
  if (options.logits) write_logits(*options.logits, model, data, depth, eval);

  fmt::print("{}: {} tokens predicted in {} windows of up to {}{}{}\n", data.name(), result.tokens, result.windows,
             model.config().context_length,
             options.forced_gate ? fmt::format(", the gate forced to {}", *options.forced_gate) : "",
             eval.kv == KvStrategy::full ? "" : fmt::format(", token by token on the cache \"{}\"", options.kv));
  print_table(result, model);
  Json json = losses(result, depth, model.config().tokenizer == "bytes");
  if (!routings.empty()) json["loss_" + routings[0].name] = json["loss"];
  for (std::size_t i = 0; i < otherwise.size(); ++i) {
    fmt::print("{}:\n", routings[i + 1].words);
    print_table(otherwise[i], model);
    print_routes(otherwise[i]);
    json["loss_" + routings[i + 1].name] = otherwise[i].by_depth.at(depth).mean;
    json["loss_by_depth_" + routings[i + 1].name] = means(otherwise[i]);
    add_routes(json, otherwise[i]);
  }
  std::fflush(stdout);  // before the same place is written by another name, as by --json /dev/stdout
  return json;
}

// Prints the results of the tasks, writes the files that their flags ask for, and returns what --json adds.
Json evaluate_tasks(const TaskFlags& flags, std::vector<TaskResult>& tasks, const LanguageModel& model,
                    const ScoreOptions& score, int depth, const Json& about) {
  score_tasks(tasks, model, score);
  print_tasks(tasks, model, depth);
  if (flags.log_samples) write_file(*flags.log_samples, samples_text(tasks, depth, model.config().context_length));
  if (flags.harness_json)
    write_file(*flags.harness_json, to_text(harness_json(tasks, depth, flags.limit, about), 2) + "\n");
  return tasks_json(tasks, depth);
}

int run(int argc, char** argv) {
  Options options;
  TaskFlags task_flags;
  DeviceConfig device_flags;
  Flags flags("eval",
              "The loss of a checkpoint, in nats per predicted token, over a whole file, and its accuracy on zero-shot "
              "tasks, at any depth.");
  flags.add(options);
  flags.add(task_flags);
  flags.add(device_flags);
  if (!flags.parse(argc, argv)) return 0;
  check_flags(options, task_flags);

  const std::unique_ptr<Device> device = device_flags.open();
  const std::unique_ptr<LanguageModel> model = load_model(*options.checkpoint, *device, device_flags.type());
  const int depth = options.depth.value_or(model->depths().full);
  EvalOptions eval{.batch_size = options.batch_size,
                   .stride = options.stride,
                   .further = true,
                   .seed = options.seed,
                   .kv = kv_strategy(options.kv)};
  if (options.depths) eval.depths = parse_depths(*options.depths, *model, "--depths");
  const auto place = std::lower_bound(eval.depths.begin(), eval.depths.end(), depth);
  if (place == eval.depths.end() || *place != depth) eval.depths.insert(place, depth);
  if (options.forced_gate) eval.forced_gate = static_cast<float>(*options.forced_gate);
  check_options(*model, eval);
  std::vector<TaskResult> tasks = read_tasks(task_flags, model->config());
  for (const auto& [flag, output] : outputs(options, task_flags))
    for (const TaskResult& task : tasks)
      check(!output || !same_place(*output, task.documents.file), "{}: {} is the input {}", flag, output.value_or(""),
            task.documents.file);
  std::optional<TokenData> data;
  if (options.data || options.text) data.emplace(open_data(options, model->config()));

  Json json = Json::object();
  const Json identity = about(options, *model, depth, device_flags);
  if (data) json.update(evaluate_data(options, *model, *data, eval, depth));
  if (!tasks.empty())
    json.update(evaluate_tasks(task_flags, tasks, *model,
                               {.depths = eval.depths,
                                .batch_size = options.batch_size,
                                .forced_gate = eval.forced_gate,
                                .seed = options.seed,
                                .kv = eval.kv},
                               depth, identity));
  json.update(identity);
  if (options.json) write_file(*options.json, json.dump(2) + "\n");
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("eval", [&] { return grt::run(argc, argv); });
}
