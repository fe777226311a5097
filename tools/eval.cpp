// eval: the loss of a checkpoint on a token file or a text and its accuracy on zero-shot tasks, at any of its depths.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
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
  std::optional<std::string> checkpoint, data, text, depths, exit, json, logits;
  std::optional<int> depth;
  std::optional<double> forced_gate;
  std::string kv = "full";
  std::int64_t stride = 0, batch_size = 8;
  std::uint64_t seed = 1337;
  bool time = false;

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
      "so much of a core layer's steps; or several, separated by commas");
    v("exit", exit,
      "besides, let each token stop before --depth, as generate --exit does: rules separated by commas, such as "
      "kl:5e-4,kl:1e-3; prints the loss, the depths and how often full depth says the same");
    v("stride", stride,
      "begin a window every so many tokens and score each token in the first window that holds it; "
      "0: windows side by side");
    v("batch-size", batch_size, "windows at a time; the results do not depend on it");
    v("seed", seed, "poisson: of the random initial state, a function of the seed and the position");
    v("time", time, "with --kv full: also what a token of the first batch takes at each depth, in the table alone");
    v("json", json, "file to write the results to");
    v("logits", logits, "safetensors file to write the logits of the first window to: `logits` [T, vocab_size], F32");
  }
};

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::vector<KvStrategy> strategies(const std::string& text) {
  std::vector<KvStrategy> list;
  for (const std::string& name : listed(text)) {
    list.push_back(kv_strategy(name));
    check(std::count(list.begin(), list.end(), list.back()) == 1, "--kv: names {} twice", name);
  }
  return list;
}

std::vector<ExitRule> exit_rules(const std::optional<std::string>& text) {
  std::vector<ExitRule> rules;
  if (text)
    for (const std::string& rule : listed(*text)) rules.push_back(exit_rule(rule));
  return rules;
}

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
  const std::vector<KvStrategy> kvs = strategies(options.kv);
  check(!options.logits || kvs[0] == KvStrategy::full, "--logits: are those of --kv full, not {}", options.kv);
  const bool has_text = options.data || options.text;
  check(has_text || !options.logits, "--logits: expected --data or --text besides");
  check(has_text || options.stride == 0, "--stride: expected --data or --text besides");
  check(has_text || !options.time, "--time: expected --data or --text besides");
  check(!options.time || std::count(kvs.begin(), kvs.end(), KvStrategy::full) > 0,
        "--time: is that of --kv full, not {}", options.kv);
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
  for (const ExitResult& exit : result.exits) check_loss("the loss of tokens that stop early", exit.loss.mean);
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

// Milliseconds that a forward pass to each depth takes for a token of the first batch, loss included, once it has run
// before.
std::map<int, double> milliseconds_per_token(const LanguageModel& model, const TokenData& data,
                                             const EvalOptions& eval) {
  const std::vector<Window> windows = evaluation_windows(data.size(), model.config().context_length);
  const Batch batch = evaluation_batch(data, evaluation_batches(windows, eval.batch_size).front(), model.device());
  Pass pass;
  pass.forced_gate = eval.forced_gate;
  pass.key.seed = eval.seed;
  std::map<int, double> times;
  for (const int depth : eval.depths)
    for (int round = 0; round < 2; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      host_values(model.losses(model.hidden(batch.tokens, depth, pass).value(), batch.targets));
      const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
      times[depth] = taken.count() / static_cast<double>(batch.targets.numel());
    }
  return times;
}

// "n/a" for what is not known.
std::string error_text(double standard_error) {
  return std::isnan(standard_error) ? "n/a" : fmt::format("{:.6f}", standard_error);
}

// `times` is what a token takes at each depth, or empty. `counted`: FLOPs are those of the model's flops().
void print_table(const EvalResult& result, const LanguageModel& model, const std::map<int, double>& times,
                 bool counted = true) {
  const bool bytes = model.config().tokenizer == "bytes";
  fmt::print("{:>6}  {:>12}  {:>12}  {:>12}{}  {:>12}{}\n", "depth", "loss", "std. error", "perplexity",
             bytes ? "  bits per byte" : "", counted ? "MFLOP/token" : "", times.empty() ? "" : "  ms/token");
  for (const auto& [depth, loss] : result.by_depth) {
    const Flops flops = model.flops(model.config().context_length, depth);
    fmt::print("{:>6}  {:>12.6f}  {:>12}  {:>12.6g}", depth, loss.mean, error_text(loss.standard_error),
               std::exp(loss.mean));
    if (bytes) fmt::print("  {:>13.6f}", bits(loss.mean));
    if (counted) fmt::print("  {:>12.3f}", (flops.executed_body + flops.executed_head) / 1e6);
    if (!times.empty()) fmt::print("  {:>8.4f}", times.at(depth));
    fmt::print("{}\n", depth > model.depths().full ? "  deeper than trained for" : "");
  }
  for (const auto& [name, loss] : result.further)
    fmt::print("{}: {:.6f} (std. error {})\n", name, loss.mean, error_text(loss.standard_error));
}

void print_routes(const EvalResult& result) {
  if (result.depth_histogram.empty()) return;
  fmt::print("steps of a token:");
  for (const auto& [steps, share] : result.depth_histogram) fmt::print("  {}: {:.2f} %", steps, 100 * share);
  fmt::print("\n");
  if (result.router_entropy) fmt::print("mean entropy of a router's decision: {:.4f} nats\n", *result.router_entropy);
}

void print_exits(const EvalResult& result, const EvalOptions& eval) {
  if (eval.exits.empty()) return;
  fmt::print("token by token, each to depth {} at most; agreement: the likeliest next token is that of depth {}\n",
             eval.exit_bound, eval.exit_bound);
  fmt::print("{:>12}  {:>12}  {:>12}  {:>9}  {:>9}  share of the tokens by depth\n", "exit", "loss", "std. error",
             "agreement", "depth");
  for (std::size_t i = 0; i < eval.exits.size(); ++i) {
    const ExitResult& exit = result.exits[i];
    fmt::print("{:>12}  {:>12.6f}  {:>12}  {:>7.2f} %  {:>9.3f}", text_of(eval.exits[i]), exit.loss.mean,
               error_text(exit.loss.standard_error), 100 * exit.agreement, exit.mean_depth);
    for (const auto& [depth, share] : exit.depths) fmt::print("  {}: {:.1f} %", depth, 100 * share);
    fmt::print("\n");
  }
}

Json exits_json(const EvalResult& result, const EvalOptions& eval) {
  Json json = Json::object();
  for (std::size_t i = 0; i < eval.exits.size(); ++i) {
    const ExitResult& exit = result.exits[i];
    Json depths = Json::object();
    for (const auto& [depth, share] : exit.depths) depths[std::to_string(depth)] = share;
    json[text_of(eval.exits[i])] = {{"loss", exit.loss.mean},
                                    {"loss_stderr", exit.loss.standard_error},
                                    {"agreement", exit.agreement},
                                    {"mean_depth", exit.mean_depth},
                                    {"depths", depths},
                                    {"substituted_keys_and_values", exit.substituted}};
  }
  return json;
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
Json about(const Options& options, const LanguageModel& model, int depth, const DeviceConfig& device,
           const WeightsConfig& weights) {
  Json json = {{"depth", depth}, {"checkpoint", *options.checkpoint}};
  if (options.data) json["data"] = *options.data;
  if (options.text) json["text"] = *options.text;
  json["stride"] = options.stride;
  json["forced_gate"] = options.forced_gate ? Json(*options.forced_gate) : Json(nullptr);
  json["kv"] = options.kv;
  if (options.exit) json["exit"] = *options.exit;
  json["seed"] = options.seed;
  json["dtype"] = device.dtype;
  json["weights"] = weights.weights;
  json["config"] = model.config_json();
  return json;
}

std::string heading(const TokenData& data, const EvalResult& result, const LanguageModel& model,
                    const EvalOptions& eval) {
  return fmt::format(
      "{} (fingerprint {}): {} tokens predicted in {} windows of up to {}{}{}\n", data.name(), data.fingerprint_text(),
      result.tokens, result.windows, model.config().context_length,
      eval.forced_gate ? fmt::format(", the gate forced to {}", *eval.forced_gate) : "",
      eval.kv == KvStrategy::full ? "" : fmt::format(", token by token on the cache \"{}\"", name_of(eval.kv)));
}

// What the model's other ways of routing give.
Json evaluate_routings(const LanguageModel& model, const TokenData& data, const EvalOptions& eval, int depth) {
  Json json = Json::object();
  const std::vector<Routing> routings = model.routings();
  for (std::size_t i = 1; i < routings.size(); ++i) {
    EvalOptions other = eval;
    other.causal_routing = routings[i].causal;
    const EvalResult result = evaluate_shown(model, data, other);
    fmt::print("{}:\n", routings[i].words);
    print_table(result, model, {}, false);  // the histogram says how much is executed
    print_routes(result);
    json["loss_" + routings[i].name] = result.by_depth.at(depth).mean;
    json["loss_by_depth_" + routings[i].name] = means(result);
    add_routes(json, result);
  }
  return json;
}

// Prints the losses under each of `kvs` and returns them; those under the first are the results proper.
Json evaluate_data(const Options& options, const LanguageModel& model, const TokenData& data, EvalOptions eval,
                   std::span<const KvStrategy> kvs, int depth) {
  Json json = Json::object();
  for (const KvStrategy kv : kvs) {
    eval.kv = kv;
    const EvalResult result = evaluate_shown(model, data, eval);
    fmt::print("{}", heading(data, result, model, eval));
    std::map<int, double> times;
    if (options.time && kv == KvStrategy::full) times = milliseconds_per_token(model, data, eval);
    print_table(result, model, times);
    print_exits(result, eval);
    Json under = losses(result, depth, model.config().tokenizer == "bytes");
    if (!eval.exits.empty()) under["exits"] = exits_json(result, eval);
    if (json.empty()) json = under;
    if (kvs.size() > 1) json["by_kv"][name_of(kv)] = under;
  }
  json["data_fingerprint"] = data.fingerprint_text();
  eval.kv = kvs[0];
  if (options.logits) write_logits(*options.logits, model, data, depth, eval);
  const std::vector<Routing> routings = model.routings();
  if (!routings.empty()) json["loss_" + routings[0].name] = json["loss"];
  json.update(evaluate_routings(model, data, eval, depth));
  std::fflush(stdout);  // before the same place is written by another name, as by --json /dev/stdout
  return json;
}

// Prints the results of the tasks, writes the files that their flags ask for, and returns what --json adds.
Json evaluate_tasks(const TaskFlags& flags, std::vector<TaskResult>& tasks, const LanguageModel& model,
                    const ScoreOptions& score, std::span<const KvStrategy> kvs, std::span<const ExitRule> exits,
                    int depth, const Json& about) {
  score_tasks(tasks, model, score, kvs, exits, depth);
  print_tasks(tasks, model, depth);
  if (flags.log_samples) write_file(*flags.log_samples, samples_text(tasks, depth, model.config().context_length));
  if (flags.harness_json)
    write_file(*flags.harness_json, to_text(harness_json(tasks, depth, flags.limit, about), 2) + "\n");
  return tasks_json(tasks, model, depth);
}

int run(int argc, char** argv) {
  Options options;
  TaskFlags task_flags;
  DeviceConfig device_flags;
  WeightsConfig weights;
  Flags flags("eval",
              "The loss of a checkpoint, in nats per predicted token, over a whole file, and its accuracy on zero-shot "
              "tasks, at any depth.");
  flags.add(options);
  flags.add(task_flags);
  flags.add(device_flags);
  flags.add(weights);
  if (!flags.parse(argc, argv)) return 0;
  check_flags(options, task_flags);
  options.checkpoint = resolve_checkpoint(*options.checkpoint).string();  // `latest` may move on while this runs

  const std::unique_ptr<Device> device = device_flags.open_and_tell();
  const std::unique_ptr<LanguageModel> model =
      load_model(*options.checkpoint, *device, device_flags.type(), weights.packed(device_flags));
  const int depth = options.depth.value_or(model->depths().full);
  const std::vector<KvStrategy> kvs = strategies(options.kv);
  EvalOptions eval{.batch_size = options.batch_size,
                   .stride = options.stride,
                   .further = true,
                   .seed = options.seed,
                   .kv = kvs[0],
                   .exits = exit_rules(options.exit),
                   .exit_bound = depth};
  if (options.depths) eval.depths = parse_depths(*options.depths, *model, "--depths");
  const auto place = std::lower_bound(eval.depths.begin(), eval.depths.end(), depth);
  if (place == eval.depths.end() || *place != depth) eval.depths.insert(place, depth);
  if (options.forced_gate) eval.forced_gate = static_cast<float>(*options.forced_gate);
  for (const KvStrategy kv : kvs) model->check_kv(kv);
  check_options(*model, eval);
  std::vector<TaskResult> tasks = read_tasks(task_flags, model->config());
  for (const auto& [flag, output] : outputs(options, task_flags))
    for (const TaskResult& task : tasks)
      check(!output || !same_place(*output, task.documents.file), "{}: {} is the input {}", flag, output.value_or(""),
            task.documents.file);
  std::optional<TokenData> data;
  if (options.data || options.text) data.emplace(open_data(options, model->config()));

  Json json = Json::object();
  const Json identity = about(options, *model, depth, device_flags, weights);
  if (data) json.update(evaluate_data(options, *model, *data, eval, kvs, depth));
  if (!tasks.empty())
    json.update(evaluate_tasks(task_flags, tasks, *model,
                               {.depths = eval.depths,
                                .batch_size = options.batch_size,
                                .forced_gate = eval.forced_gate,
                                .seed = options.seed},
                               kvs, eval.exits, depth, identity));
  json.update(identity);
  if (options.json) write_file(*options.json, to_text(json, 2) + "\n");
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("eval", [&] { return grt::run(argc, argv); });
}
