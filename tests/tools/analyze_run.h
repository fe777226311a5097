// How the tests of analyze call it, and a small model and a text for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/safetensors.h"
#include "tests/models/toys.h"

namespace grt::test {

inline std::vector<std::string> arguments(const std::filesystem::path& checkpoint, const std::filesystem::path& data,
                                          const std::filesystem::path& out, const std::vector<std::string>& more) {
  std::vector<std::string> all = {"--checkpoint", checkpoint.string(), "--data",   data.string(),
                                  "--out",        out.string(),        "--device", "cpu"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline double number(const Json& json) { return json.get<double>(); }

// A byte-level model with large random weights, and a text.
inline void write_byte_model(const std::filesystem::path& to) {
  const Json json{
      {"architecture", "grt"}, {"context_length", 64}, {"d_model", 16}, {"n_heads", 2}, {"n_recurrences", 2}};
  const auto model = build(json, DType::f32);
  for (const Param& p : model->params().all())
    if (p.decayed()) cpu().kernels().multiply({p.var.value()}, p.var.value(), 8);
  std::vector<NamedTensor> all;
  for (const Param& p : model->params().all()) all.push_back({p.name, p.var.value()});
  make_directories(to);
  write_safetensors(to / "model.safetensors", all);
  write_file(to / "config.json", model->config_json().dump());
}

inline void write_text(const std::filesystem::path& path, int tokens) {
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back(static_cast<std::uint16_t>(32 + (i * i + i / 7) % 90));
  write_file(path, {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()});
}

}  // namespace grt::test
