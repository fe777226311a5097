#include "models/config.h"

#include <algorithm>
#include <limits>

namespace grt {
namespace {

std::string quoted(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void read_value(const Json& json, const std::string& where, const char* name, std::string& value) {
  check(json.is_string(), "{}: {} must be a string, not {}", where, name, quoted(json));
  value = json.get<std::string>();
}
void read_value(const Json& json, const std::string& where, const char* name, bool& value) {
  check(json.is_boolean(), "{}: {} must be true or false, not {}", where, name, quoted(json));
  value = json.get<bool>();
}
void read_value(const Json& json, const std::string& where, const char* name, double& value) {
  check(json.is_number(), "{}: {} must be a number, not {}", where, name, quoted(json));
  value = json.get<double>();
}
template <std::integral I>
void read_value(const Json& json, const std::string& where, const char* name, I& value) {
  check(json.is_number_integer(), "{}: {} must be a whole number, not {}", where, name, quoted(json));
  const bool huge = json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  const std::int64_t n = huge ? std::numeric_limits<std::int64_t>::max() : json.get<std::int64_t>();
  check(!huge && n >= std::numeric_limits<I>::min() && n <= std::numeric_limits<I>::max(),
        "{}: {} = {} is out of range", where, name, quoted(json));
  value = static_cast<I>(n);
}

void in_range(const std::string& where, const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  check(low <= value && value <= high, "{}: {} must be {}..{}, not {}", where, name, low, high, value);
}
void not_negative(const std::string& where, const char* name, double value) {
  check(value >= 0 && value <= 1e6, "{}: {} must be a number from 0 on, not {}", where, name, value);
}

constexpr int kMostBlocks = 4096;
constexpr int kMostApplications = 100000;

}  // namespace

void BackboneConfig::complete(const std::string& where) {
  check(tokenizer == "bytes" || tokenizer == "gpt2", "{}: tokenizer must be bytes or gpt2, not \"{}\"", where,
        tokenizer);
  check(gelu == "erf" || gelu == "tanh", "{}: gelu must be erf or tanh, not \"{}\"", where, gelu);
  if (vocab_size == 0) vocab_size = tokenizer == "gpt2" ? 50257 : 257;
  in_range(where, "vocab_size", vocab_size, 2, 65536);  // token files hold 16 bits
  if (padded_vocab_size == 0) padded_vocab_size = (vocab_size + 63) / 64 * 64;
  in_range(where, "padded_vocab_size", padded_vocab_size, vocab_size, 131072);
  in_range(where, "context_length", context_length, 1, 1 << 20);
  in_range(where, "d_model", d_model, 1, 65536);
  in_range(where, "n_heads", n_heads, 1, 65536);
  check(d_model % n_heads == 0, "{}: d_model {} is not a multiple of n_heads {}", where, d_model, n_heads);
}

void DenseConfig::complete(const std::string& where) {
  BackboneConfig::complete(where);
  in_range(where, "n_layers", n_layers, 1, kMostBlocks);
}

void RecurrentConfig::complete(const std::string& where) {
  BackboneConfig::complete(where);
  in_range(where, "n_prelude", n_prelude, 0, kMostBlocks);
  in_range(where, "n_core", n_core, 1, kMostBlocks);
  in_range(where, "n_recurrences", n_recurrences, 1, kMostBlocks);
  in_range(where, "n_coda", n_coda, 0, kMostBlocks);
  const std::int64_t applications = n_prelude + static_cast<std::int64_t>(n_core) * n_recurrences + n_coda;
  check(applications <= kMostApplications, "{}: n_core {} x n_recurrences {} are {} block applications, above {}",
        where, n_core, n_recurrences, applications, kMostApplications);
}

void GrtConfig::complete(const std::string& where) {
  RecurrentConfig::complete(where);
  in_range(where, "r_min", r_min, 0, n_recurrences);
  not_negative(where, "state_noise", state_noise);
  not_negative(where, "gate_noise", gate_noise);
  check(gate_temperature >= 1e-6 && gate_temperature <= 1e6, "{}: gate_temperature must be 1e-6..1e6, not {}", where,
        gate_temperature);
  check(gate_bias >= -1e6 && gate_bias <= 1e6, "{}: gate_bias must be a finite number, not {}", where, gate_bias);
}

void PoissonConfig::complete(const std::string& where) {
  RecurrentConfig::complete(where);
  check(initial_state == "random" || initial_state == "zero", "{}: initial_state must be random or zero, not \"{}\"",
        where, initial_state);
  in_range(where, "backprop_steps", backprop_steps, 1, kMostBlocks);
}

void MorConfig::complete(const std::string& where) {
  RecurrentConfig::complete(where);
  check(router_type == "linear" || router_type == "mlp", "{}: router_type must be linear or mlp, not \"{}\"", where,
        router_type);
  not_negative(where, "router_scale", router_scale);
  not_negative(where, "router_aux_weight", router_aux_weight);
}

void RrtConfig::complete(const std::string& where) {
  RecurrentConfig::complete(where);
  in_range(where, "lora_rank", lora_rank, 1, d_model);
  not_negative(where, "lora_alpha", lora_alpha);
  if (lora_alpha == 0) lora_alpha = 2.0 * lora_rank;
}

void OuroConfig::complete(const std::string& where) {
  RecurrentConfig::complete(where);
  not_negative(where, "entropy_weight", entropy_weight);
}

template <class Config>
Config read_config(const Json& json, const std::string& where) {
  check(json.is_object(), "{}: a model configuration must be a JSON object, not {}", where, quoted(json).substr(0, 40));
  Config config;
  std::vector<std::string> known;
  config.fields([&](const char* name, auto& value, const char*) {
    known.push_back(name);
    if (const auto it = json.find(name); it != json.end()) read_value(*it, where, name, value);
  });
  for (const auto& [key, value] : json.items())
    check(std::find(known.begin(), known.end(), key) != known.end(),
          "{}: architecture {} has no key \"{}\"; its keys: {}", where, config.architecture, key,
          fmt::join(known, ", "));
  config.complete(where);
  return config;
}

template DenseConfig read_config<DenseConfig>(const Json&, const std::string&);
template GrtConfig read_config<GrtConfig>(const Json&, const std::string&);
template PoissonConfig read_config<PoissonConfig>(const Json&, const std::string&);
template MorConfig read_config<MorConfig>(const Json&, const std::string&);
template RrtConfig read_config<RrtConfig>(const Json&, const std::string&);
template OuroConfig read_config<OuroConfig>(const Json&, const std::string&);

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> keys;
  const auto add = [&](const char* name, auto&, const char* help) {
    if (std::none_of(keys.begin(), keys.end(), [&](const ConfigKey& k) { return k.name == name; }))
      keys.push_back({name, help});
  };
  DenseConfig{}.fields(add);
  GrtConfig{}.fields(add);
  PoissonConfig{}.fields(add);
  MorConfig{}.fields(add);
  RrtConfig{}.fields(add);
  OuroConfig{}.fields(add);
  return keys;
}

}  // namespace grt
