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
    v("architecture", architecture, "dense, grt, poisson, mor, rrt or ouro");
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

// p prelude blocks, b core blocks applied R times, c coda blocks.
struct RecurrentConfig : BackboneConfig {
  int n_prelude = 1, n_core = 1, n_recurrences = 10, n_coda = 1;

  template <class V>
  void fields(V&& v) {
    BackboneConfig::fields(v);
    v("n_prelude", n_prelude, "p, blocks before the recurrence");
    v("n_core", n_core, "b, blocks of the shared core");
    v("n_recurrences", n_recurrences, "R, applications of the core at full depth");
    v("n_coda", n_coda, "c, blocks after the recurrence");
  }
  int applications() const { return n_prelude + n_core * n_recurrences + n_coda; }
  void complete(const std::string& where);
};

struct GrtConfig : RecurrentConfig {
  int r_min = 1;
  double state_noise = 0.1, gate_noise = 0.1, gate_temperature = 1.0, gate_bias = 4.0;
  bool gate_concat_norm = false, use_injection = true, use_gate = true;

  template <class V>
  void fields(V&& v) {
    RecurrentConfig::fields(v);
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

struct PoissonConfig : RecurrentConfig {
  std::string initial_state = "random";
  int backprop_steps = 8;

  template <class V>
  void fields(V&& v) {
    RecurrentConfig::fields(v);
    v("initial_state", initial_state, "random (truncated normal) or zero");
    v("backprop_steps", backprop_steps, "last recurrences that gradients flow through");
  }
  void complete(const std::string& where);
};

struct MorConfig : RecurrentConfig {
  std::string router_type = "linear";
  double router_scale = 0.1, router_aux_weight = 0.001;

  template <class V>
  void fields(V&& v) {
    RecurrentConfig::fields(v);
    v("router_type", router_type, "linear or mlp");
    v("router_scale", router_scale, "alpha of the router's gate alpha sigmoid(z)");
    v("router_aux_weight", router_aux_weight, "weight of the router's auxiliary loss");
  }
  void complete(const std::string& where);
};

struct RrtConfig : RecurrentConfig {
  int lora_rank = 8;
  double lora_alpha = 0;  // 0: 2 rho

  template <class V>
  void fields(V&& v) {
    RecurrentConfig::fields(v);
    v("lora_rank", lora_rank, "rho, rank of each recurrence's own part of a weight");
    v("lora_alpha", lora_alpha, "that part is multiplied by alpha / rho; 0: alpha is 2 rho");
  }
  void complete(const std::string& where);
};

struct OuroConfig : RecurrentConfig {
  double entropy_weight = 0.05;

  template <class V>
  void fields(V&& v) {
    RecurrentConfig::fields(v);
    v("entropy_weight", entropy_weight, "beta of the entropy of the exit distribution");
  }
  void complete(const std::string& where);
};

// Reads `json` strictly: an unknown key, a wrong type or a value out of range is an Error that names `where` (a file or
// preset) and the key. Missing keys keep their defaults.
template <class Config>
Config read_config(const Json& json, const std::string& where);
extern template DenseConfig read_config<DenseConfig>(const Json&, const std::string&);
extern template GrtConfig read_config<GrtConfig>(const Json&, const std::string&);
extern template PoissonConfig read_config<PoissonConfig>(const Json&, const std::string&);
extern template MorConfig read_config<MorConfig>(const Json&, const std::string&);
extern template RrtConfig read_config<RrtConfig>(const Json&, const std::string&);
extern template OuroConfig read_config<OuroConfig>(const Json&, const std::string&);

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
