// The reference models under tests/fixtures/oracle: weights, tokens and the values that a float64 implementation in
// PyTorch computed from them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/safetensors.h"
#include "tests/support.h"
#include "train/checkpoint.h"
#include "train/data.h"

namespace grt::test {

// What a float32 run may be off by; it stays ten times below.
inline constexpr double kLossTolerance = 2e-5, kLogitTolerance = 2e-4;

inline const std::vector<std::string> kOracleModels = {
    "dense",          "dense_bias_tanh", "grt", "grt_concat_norm", "grt_no_gate", "grt_no_injection",
    "grt_no_prelude", "poisson",         "mor", "mor_mlp_router",  "rrt",         "ouro"};

inline std::filesystem::path oracle(const std::string& model) { return fixture("oracle/" + model); }
inline Json oracle_values(const std::string& model) { return read_json((oracle(model) / "expected.json").string()); }
inline std::unique_ptr<LanguageModel> oracle_model(const std::string& model, DType dtype = DType::f32) {
  return load_model(oracle(model), cpu(), dtype);
}
inline TokenData oracle_tokens(const std::string& model, std::int64_t vocab_size) {
  return TokenData::open((oracle(model) / "tokens.bin").string(), vocab_size);
}

// A copy of a reference model's config.json and weights in which the first element of `tensor` is `value`.
inline void write_spoiled(const std::string& model, const std::filesystem::path& to, const std::string& tensor,
                          float value) {
  const auto good = oracle_model(model);
  const Tensor spoiled = good->params().find(tensor)->var.value();
  spoiled.data<float>()[0] = value;
  std::vector<NamedTensor> all;
  for (const Param& p : good->params().all()) all.push_back({p.name, p.var.value()});
  make_directories(to);
  write_safetensors(to / "model.safetensors", all);
  write_file(to / "config.json", good->config_json().dump());
}

}  // namespace grt::test
