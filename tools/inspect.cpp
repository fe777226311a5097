// inspect: what a model or a checkpoint consists of: tensors, parameter counts, which weights are used when, FLOPs,
// cache.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/main.h"
#include "tools/inspect_tables.h"
#include "train/checkpoint.h"
#include "train/describe.h"
#include "train/tables.h"

namespace grt {
namespace {

struct Options {
  std::vector<std::string> what;
  std::optional<std::string> model, json;
  std::optional<std::int64_t> context;
  std::optional<int> depth;
  bool kv = false, presets = false, tables = false;

  template <class V>
  void fields(V&& v) {
    v("model", model, "a preset or a config.json; its weights are not made");
    v("context", context, "tokens of context that FLOPs are counted for (default: the model's)");
    v("depth", depth, "exit that applications, FLOPs and cache are counted for (default: full depth)");
    v("kv", kv, "print the key/value cache too");
    v("presets", presets, "list the presets and their parameter counts");
    v("tables", tables, "every configuration beside the figures that the paper prints, and what sets the models apart");
    v("json", json, "file to write all of it to");
  }
};

std::string text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string shape_text(const Json& shape) {
  std::vector<std::int64_t> extents = shape;
  return fmt::format("({})", fmt::join(extents, ", "));
}

int name_width(const Json& tensors) {
  std::size_t width = 4;
  for (const Json& t : tensors) width = std::max(width, text(t["name"]).size());
  return static_cast<int>(width);
}

void print_declared(const Json& tensors) {
  const int width = name_width(tensors);
  fmt::print("tensors: {}\n  {:<{}}  {:>16}  {:>12}  {:>10}  {:>12}\n", tensors.size(), "name", width, "shape", "count",
             "init mean", "init std");
  for (const Json& t : tensors)
    fmt::print("  {:<{}}  {:>16}  {:>12}  {:>10}  {:>12.8g}\n", text(t["name"]), width, shape_text(t["shape"]),
               t["count"].get<std::int64_t>(), t["init_mean"].get<double>(), t["init_std"].get<double>());
}

std::string number(const Json& tensor, const char* key) {
  return tensor.contains(key) ? fmt::format("{:.6g}", tensor[key].get<double>()) : "-";
}

void print_stored(const Json& tensors) {
  const int width = name_width(tensors);
  fmt::print("tensors: {}\n  {:<{}}  {:>5}  {:>16}  {:>12}  {:>13}  {:>13}  {:>13}\n", tensors.size(), "name", width,
             "dtype", "shape", "count", "min", "max", "rms");
  for (const Json& t : tensors)
    fmt::print("  {:<{}}  {:>5}  {:>16}  {:>12}  {:>13}  {:>13}  {:>13}\n", text(t["name"]), width, text(t["dtype"]),
               shape_text(t["shape"]), t["count"].get<std::int64_t>(), number(t, "min"), number(t, "max"),
               number(t, "rms"));
  std::int64_t bad = 0;
  for (const Json& t : tensors) {
    const std::int64_t n = t.value("not_finite", std::int64_t{0});
    if (n > 0) fmt::print("NOT FINITE: {} has {} NaN or infinite values of {}\n", text(t["name"]), n, text(t["count"]));
    bad += n;
  }
  if (bad == 0) fmt::print("all values are finite\n");
}

// 1, 2, 3, 7 as "1-3, 7".
std::string ranges(const Json& steps) {
  std::string all;
  for (std::size_t i = 0; i < steps.size();) {
    std::size_t j = i;
    while (j + 1 < steps.size() && steps[j + 1].get<int>() == steps[j].get<int>() + 1) ++j;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", steps[i].get<int>());
    if (j > i) all += fmt::format("-{}", steps[j].get<int>());
    i = j + 1;
  }
  return all;
}

bool has_tensors(const Json& tensors, const std::string& prefix) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const Json& t) { return text(t["name"]).starts_with(prefix + "."); });
}

void print_sharing(const Json& model) {
  int applications = 0;
  for (const Json& a : model["applications"]) applications += a["times"].get<int>();
  fmt::print("sharing at depth {}: {} block applications, {} blocks of weights\n", text(model["depth"]), applications,
             model["applications"].size());
  for (const Json& a : model["applications"])
    fmt::print("  {:<12} {:>4} x  as application{} {}\n", text(a["block"]), a["times"].get<int>(),
               a["times"].get<int>() == 1 ? "" : "s", ranges(a["steps"]));
  // What a step does besides the core, if the model has weights of that name.
  for (const auto& [name, words] : {std::pair{"inject", "once in each recurrence"},
                                    {"gate", "once in each recurrence"},
                                    {"adapter", "once in each recurrence"},
                                    {"router", "one for each recurrence, which takes some of the tokens"},
                                    {"lora", "low-rank parts of its own for each recurrence"},
                                    {"exit_gate", "once at each exit"}})
    if (has_tensors(model["tensors"], name)) fmt::print("  {:<12} {:>4} x  {}\n", name, text(model["depth"]), words);
  fmt::print("  {:<12} {:>4} x  as embedding and as head\n", "wte", 2);
}

void print_flops(const Json& model) {
  const Json& flops = model["flops_per_token"];
  fmt::print("FLOPs per token, forward, context {}, depth {}\n  {:<10} {:>16} {:>16} {:>16}\n", text(flops["context"]),
             text(model["depth"]), "", "body", "head", "sum");
  for (const char* kind : {"paper", "executed"}) {
    const double body = flops[std::string(kind) + "_body"], head = flops[std::string(kind) + "_head"];
    fmt::print("  {:<10} {:>16.0f} {:>16.0f} {:>16.0f}\n", kind, body, head, body + head);
  }
}

void print_cache(const Json& model) {
  const Json& cache = model["kv_cache"];
  const std::int64_t slots = cache["slots"], bytes = cache["bytes_per_token"];
  const std::int64_t context = model["config"]["context_length"];
  fmt::print("key/value cache, strategy full, depth {}\n", text(model["depth"]));
  fmt::print("  slots: {}, one for each block application\n", slots);
  fmt::print("  bytes per token: {} (f32); for {} tokens: {}\n", bytes, context, bytes * context);
  if (!cache.contains("reduced")) return;
  const std::int64_t fewer = cache["reduced"]["slots"], less = cache["reduced"]["bytes_per_token"];
  fmt::print("strategies {}: {} slots, one for each block\n", text(cache["reduced"]["strategy"]), fewer);
  fmt::print("  bytes per token: {} (f32); for {} tokens: {}\n", less, context, less * context);
}

void print_model(const Json& model, bool kv) {
  fmt::print("architecture: {}\nlayout: {}\n", text(model["architecture"]), text(model["layout"]));
  for (const auto& [key, value] : model["config"].items())
    if (key != "architecture") fmt::print("  {:<18} {}\n", key, text(value));
  if (model.contains("stored"))
    print_stored(model["stored"]);
  else
    print_declared(model["tensors"]);
  fmt::print("parameters: {}\nparameters without embeddings: {}\n", text(model["parameters"]),
             text(model["parameters_without_embeddings"]));
  print_sharing(model);
  print_flops(model);
  if (kv) print_cache(model);
}

Json inspect_model(const std::unique_ptr<LanguageModel>& model, const Options& options) {
  const std::int64_t T = model->config().context_length, context = options.context.value_or(T);
  check(context >= 1 && context <= T, "--context: must be 1..{}, the model's context length, not {}", T, context);
  return describe_model(*model, context, options.depth.value_or(model->depths().full));
}

Json inspect_checkpoint(const std::string& where, const Options& options) {
  const fs::path directory = resolve_checkpoint(where);
  const std::string config = (directory / "config.json").string(), weights = (directory / "model.safetensors").string();
  const auto model = make_model(read_json(config), config);
  const Safetensors file(weights);
  check_weights(model->params(), file, weights);
  Json all = {{"checkpoint", directory.string()}};
  all.update(inspect_model(model, options));
  all["stored"] = describe_tensors(file);
  print_model(all, options.kv);
  return all;
}

Json inspect_file(const std::string& path, const Options& options) {
  check(!options.kv && !options.depth && !options.context,
        "--kv, --depth, --context: {} is a file of tensors, which says nothing of a model; name its directory", path);
  const Safetensors file(path);
  Json all = {{"file", path}, {"metadata", file.metadata()}, {"stored", describe_tensors(file)}};
  for (const auto& [key, value] : file.metadata()) fmt::print("metadata: {} = {}\n", key, value);
  print_stored(all["stored"]);
  std::int64_t count = 0;
  for (const Json& t : all["stored"]) count += t["count"].get<std::int64_t>();
  fmt::print("elements: {}\n", count);
  return all;
}

Json list_presets() {
  Json all = Json::array();
  fmt::print("{:<28} {:<12} {:>12} {:>8} {:>14}\n", "preset", "architecture", "layout", "d_model", "parameters");
  for (const std::string& name : preset_names()) {
    const auto model = make_model(find_model(name), name);
    const Json config = model->config_json();
    all.push_back({{"preset", name}, {"config", config}, {"parameters", model->params().count()}});
    fmt::print("{:<28} {:<12} {:>12} {:>8} {:>14}\n", name, model->config().architecture, layout(config),
               model->config().d_model, model->params().count());
  }
  return all;
}

Json show_tables() {
  Json all = {{"configurations", configuration_table()}, {"properties", property_table()}};
  print_configurations(all["configurations"]);
  fmt::print("\n");
  print_properties(all["properties"]);
  return all;
}

Json inspect(const Options& options) {
  const std::size_t named = options.what.size() + options.model.has_value() + options.presets + options.tables;
  check(named == 1, "{}: a checkpoint, --model, --presets or --tables",
        named == 0 ? "nothing to inspect is named" : "name one thing to inspect");
  check(!(options.presets || options.tables) || (!options.kv && !options.depth && !options.context),
        "--kv, --depth, --context: are of one model, not of --presets or --tables");
  if (options.presets) return list_presets();
  if (options.tables) return show_tables();
  const std::string name = options.model ? *options.model : options.what[0];
  std::error_code ignored;
  if (!options.model && fs::is_directory(name, ignored)) return inspect_checkpoint(name, options);
  if (!options.model && fs::path(name).extension() == ".safetensors") return inspect_file(name, options);
  for (const char* pickled : {".pt", ".pth", ".ckpt", ".pkl"})
    check(options.model || fs::path(name).extension() != pickled,
          "{}: pickled weights are not read: save them as safetensors", name);
  Json all = inspect_model(make_model(find_model(name), name), options);
  print_model(all, options.kv);
  return all;
}

int run(int argc, char** argv) {
  Options options;
  Flags flags("inspect", "What a checkpoint, a model or a .safetensors file consists of.");
  flags.positional("WHAT", options.what, "a checkpoint, a .safetensors file, a preset or a config.json");
  flags.add(options);
  if (!flags.parse(argc, argv)) return 0;
  const Json all = inspect(options);
  if (options.json) write_file(*options.json, to_text(all, 2) + "\n");
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("inspect", [&] { return grt::run(argc, argv); });
}
