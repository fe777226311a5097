// convert: weights between our checkpoints, Hugging Face's GPT-2 folders and llm.c's model files.
// train/interchange.h knows names and layouts, train/huggingface.h and train/llmc.h the two foreign formats.
#include <fmt/core.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/flags.h"
#include "core/main.h"
#include "models/flags.h"
#include "train/checkpoint.h"
#include "train/huggingface.h"
#include "train/llmc.h"
#include "train/optimizer.h"

namespace grt {
namespace {

struct Options {
  std::vector<std::string> paths;
  std::string from, to, dtype = "f32";
  std::optional<std::string> model, map;

  template <class V>
  void fields(V&& v) {
    v("from", from,
      "what IN is: hf (a GPT-2 folder), grt (a checkpoint, or one like ours under other names) or llmc (a model .bin)");
    v("to", to, "what OUT becomes: grt (a checkpoint) or hf (a GPT-2 folder; dense models alone)");
    v("dtype", dtype, "how weights are stored: f32, or bf16, which rounds them");
    v("model", model, "--from grt: a preset or config.json that says what the model is (default: IN/config.json)");
    v("map", map, "--from grt: JSON of names, {\"our name\": \"name in IN\", ...}; * stands for a number");
  }
};

struct Imported {
  std::unique_ptr<LanguageModel> model;
  std::map<std::string, std::string> metadata = {{"format", "grt"}};
};

std::unique_ptr<LanguageModel> allocated(const Json& config, const std::string& where, Device& device) {
  auto model = make_model(config, where);
  model->params().allocate(device, DType::f32);
  return model;
}

// A flag may say nothing else than what the file says of its model.
void check_kept(const Json& config, const Json& stored, const std::string& where) {
  for (const char* key : {"architecture", "context_length", "d_model", "n_layers", "n_heads", "bias", "gelu"})
    check(config[key] == stored[key], "{}: {} is {}, and cannot become {}", where, key, stored[key].dump(),
          config[key].dump());
}

void print_prefixes(const TensorFiles& files) {
  for (const std::string& prefix : files.prefixes()) fmt::print("names: without the prefix \"{}\"\n", prefix);
}

Imported from_huggingface(const fs::path& in, const ModelFlags& flags, Device& device) {
  const std::string where = (in / "config.json").string();
  const Json theirs = read_json(where);
  const Json stored = config_from_huggingface(theirs, where);
  Json config = stored;
  flags.apply(config);
  check_kept(config, stored, where);
  const TensorFiles files(in);
  const auto declared = make_model(config, where);
  const Origins origins = huggingface_origins(declared->params());
  check_origins(declared->params(), files, origins,
                [&](const std::string& name) { return is_huggingface_buffer(name, config["n_layers"]); });
  check(theirs.value("tie_word_embeddings", Json(true)) != Json(false) || files.find("lm_head.weight"),
        "{}: tie_word_embeddings is false, but {} has no lm_head.weight", where, files.where());
  auto model = allocated(config, where, device);
  read_tensors(model->params(), files, origins);
  print_prefixes(files);
  return {without_written_biases(std::move(model), theirs)};
}

// What the model is: --model, or a config.json of ours. A recurrent model's R changes no tensor, so it has to be said.
Json grt_config(const fs::path& in, const Options& options, const ModelFlags& flags, std::string& where) {
  Json config;
  if (options.model) {
    where = "--model " + *options.model;
    config = find_model(*options.model);
    flags.apply(config);
    return config;
  }
  where = (in / "config.json").string();
  config = read_json(where);
  check(config.is_object() && config.contains("architecture"),
        "{}: is no configuration of ours (it has no \"architecture\"); say what the model is by --model and its flags",
        where);
  flags.apply(config);
  check(config["architecture"] == "dense" || config.contains("n_recurrences"),
        "{}: does not say n_recurrences, which no tensor shows; give --n-recurrences", where);
  return config;
}

Imported from_grt(fs::path in, const Options& options, const ModelFlags& flags, Device& device) {
  if (std::error_code ignored; fs::is_regular_file(in / "latest", ignored)) in = resolve_checkpoint(in);
  std::string where;
  const Json config = grt_config(in, options, flags, where);
  const TensorFiles files(in);
  const auto declared = make_model(config, where);
  const Params& params = declared->params();
  const Origins origins = options.map ? read_map(*options.map, params) : same_names(params);
  check_origins(params, files, origins, [](const std::string&) { return false; });
  Imported imported{allocated(config, where, device)};
  read_tensors(imported.model->params(), files, origins);
  print_prefixes(files);
  if (const auto format = files.metadata().find("format"); format != files.metadata().end() && format->second == "grt")
    imported.metadata = files.metadata();
  return imported;
}

Imported from_llmc(const fs::path& in, const ModelFlags& flags, Device& device) {
  const LlmcFile file(in);
  Json config = file.config();
  flags.apply(config);
  check_kept(config, file.config(), in.string());
  check(config["padded_vocab_size"] == file.config()["padded_vocab_size"],
        "{}: padded_vocab_size is {}, and cannot become {}", in.string(), file.config()["padded_vocab_size"].dump(),
        config["padded_vocab_size"].dump());
  check(config["vocab_size"] <= file.config()["vocab_size"], "{}: vocab_size is {}, and cannot become {}", in.string(),
        file.config()["vocab_size"].dump(), config["vocab_size"].dump());
  Imported imported{allocated(config, in.string(), device)};
  file.read(imported.model->params());
  return imported;
}

Imported import(const Options& o, const ModelFlags& flags, Device& device) {
  check(o.from == "grt" || (!o.model && !o.map), "--{}: is for --from grt", o.model ? "model" : "map");
  if (o.from == "hf") return from_huggingface(o.paths[0], flags, device);
  if (o.from == "grt") return from_grt(o.paths[0], o, flags, device);
  check(o.from == "llmc", "--from: must be hf, grt or llmc, not \"{}\"", o.from);
  return from_llmc(o.paths[0], flags, device);
}

int convert(const Options& o, const ModelFlags& flags) {
  check(o.paths.size() == 2, "IN OUT: two paths are needed, not {}", o.paths.size());
  check(!o.paths[1].empty(), "IN OUT: OUT is empty, expected the name of a new directory");
  check_new(o.paths[1]);
  check(o.to == "grt" || o.to == "hf", "--to: must be grt or hf, not \"{}\"", o.to);
  check(o.dtype == "f32" || o.dtype == "bf16", "--dtype: must be f32 or bf16, not \"{}\"", o.dtype);
  const DType dtype = o.dtype == "bf16" ? DType::bf16 : DType::f32;
  const std::unique_ptr<Device> device = open_cpu();  // outlives every tensor
  const Imported imported = import(o, flags, *device);
  const LanguageModel& model = *imported.model;
  if (const std::string bad = first_bad_weight(model.params()); !bad.empty()) fmt::print("NOT FINITE: {}\n", bad);
  if (o.to == "grt")
    write_checkpoint(o.paths[1], model, dtype, imported.metadata);
  else
    write_huggingface(o.paths[1], model, dtype);
  fmt::print("{}: {}, {} parameters in {}, from {}\n", o.paths[1], model.config().architecture, model.params().count(),
             o.dtype, o.paths[0]);
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("convert", [&] {
    grt::Options options;
    grt::ModelFlags model_flags;
    grt::Flags flags("convert", "Converts weights between our checkpoints, Hugging Face's GPT-2 and llm.c's files.");
    flags.positional("IN OUT", options.paths, "what to read, and the new directory to write");
    flags.add(options);
    model_flags.declare(flags);
    if (!flags.parse(argc, argv)) return 0;
    return grt::convert(options, model_flags);
  });
}
