// Model configurations: plain structs, each with one list of its fields. config.json, the model flags of `train` and
// the help text are derived from that list. Keys, defaults and meaning: the table in README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "ops/kernels.h"

namespace grt {

// What every architecture has: the GPT-2 backbone.
struct BackboneConfig {
  std::string architecture;
  std::string tokenizer = "bytes";
  std::int64_t vocab_size = 0;         // 0: the tokenizer's
  std::int64_t padded_vocab_size = 0;  // 0: vocab_size rounded up to a multiple of 64
  std::int64_t context_length = 1024;
  std::int64_t d_model = 768;
  int n_heads = 12;
  bool bias = false;
  std::string gelu = "erf";

  template <class V>
  void fields(V&& v) {
    v("architecture", architecture, "dense or grt");
    v("tokenizer", tokenizer, "bytes or gpt2: what the token ids mean");
    v("vocab_size", vocab_size, "V, token ids (0: the tokenizer's)");
    v("padded_vocab_size", padded_vocab_size, "rows of wte (0: V rounded up to a multiple of 64)");
    v("context_length", context_length, "T, tokens of a sequence");
    v("d_model", d_model, "d, width of the residual stream");
    v("n_heads", n_heads, "H, attention heads");
    v("bias", bias, "biases in Linear and LayerNorm");
    v("gelu", gelu, "erf (exact) or tanh");
  }

  Gelu gelu_kind() const { return gelu == "tanh" ? Gelu::tanh : Gelu::erf; }
  std::int64_t head_size() const { return d_model / n_heads; }
  void complete(
      const std::string& where);  // fills derived defaults and checks ranges; throws Error naming where and key
};

struct DenseConfig : BackboneConfig {
  int n_layers = 12;

  template <class V>
  void fields(V&& v) {
    BackboneConfig::fields(v);
    v("n_layers", n_layers, "blocks");
  }
  void complete(const std::string& where);
};

struct GrtConfig : BackboneConfig {
  int n_prelude = 1, n_core = 1, n_recurrences = 10, n_coda = 1;
  int r_min = 1;
  double state_noise = 0.1, gate_noise = 0.1, gate_temperature = 1.0, gate_bias = 4.0;
  bool gate_concat_norm = false, use_injection = true, use_gate = true;

  template <class V>
  void fields(V&& v) {
    BackboneConfig::fields(v);
    v("n_prelude", n_prelude, "p, blocks before the recurrence");
    v("n_core", n_core, "b, blocks of the shared core");
    v("n_recurrences", n_recurrences, "R, applications of the core at full depth");
    v("n_coda", n_coda, "c, blocks after the recurrence");
    v("r_min", r_min, "smallest training depth");
    v("state_noise", state_noise, "sigma_x, noise on the state that enters the core, in training");
    v("gate_noise", gate_noise, "sigma_g, noise on the gate's logit, in training");
    v("gate_temperature", gate_temperature, "tau of the gate's sigmoid");
    v("gate_bias", gate_bias, "initial bias of the gate: sigmoid(4) = 0.98 keeps the state");
    v("gate_concat_norm", gate_concat_norm,
      "a further LayerNorm over the gate's input, as in the published checkpoints");
    v("use_injection", use_injection, "mix the anchor into the core's input");
    v("use_gate", use_gate, "gated update; off: the core's output replaces the state");
  }
  void complete(const std::string& where);
};

// Reads `json` strictly: an unknown key, a wrong type or a value out of range is an Error that names `where` (a file or
// preset) and the key. Missing keys keep their defaults.
template <class Config>
Config read_config(const Json& json, const std::string& where);
extern template DenseConfig read_config<DenseConfig>(const Json&, const std::string&);
extern template GrtConfig read_config<GrtConfig>(const Json&, const std::string&);

template <class Config>
Json to_json(Config config) {
  Json json;
  config.fields([&](const char* name, auto& value, const char*) { json[name] = value; });
  return json;
}

// A preset's name or a config.json: the keys it sets. Throws Error listing the presets.
Json find_model(const std::string& preset_or_file);
std::vector<std::string> preset_names();

// One line of a configuration: its key, its help text.
struct ConfigKey {
  std::string name, help;
};
std::vector<ConfigKey> config_keys();  // of all architectures, each once

}  // namespace grt
