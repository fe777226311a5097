// The named models: the paper's configurations at three scales, its ablation ladder, and `nano` for two CPU cores.
#include <algorithm>
#include <filesystem>
#include <map>

#include "models/config.h"

namespace grt {
namespace {

struct Layout {  // p + b x R + c
  int prelude, core, recurrences, coda;
};

Json scale(std::int64_t width, int heads) {
  return {{"tokenizer", "gpt2"}, {"context_length", 1024}, {"d_model", width}, {"n_heads", heads}};
}
Json nano() { return {{"tokenizer", "bytes"}, {"context_length", 256}, {"d_model", 128}, {"n_heads", 4}}; }

Json dense(const Json& scale, int layers) {
  Json json;
  json["architecture"] = "dense";
  json.update(scale);
  json["n_layers"] = layers;
  return json;
}

Json recurrent(const std::string& architecture, const Json& scale, Layout l) {
  Json json;
  json["architecture"] = architecture;
  json.update(scale);
  json.update(Json{{"n_prelude", l.prelude}, {"n_core", l.core}, {"n_recurrences", l.recurrences}, {"n_coda", l.coda}});
  return json;
}

// Rows of the ablation ladder: each adds one part to the row before; row 5 is the full model.
Json ablation(const Json& scale, int row, Layout recurrence_only, Layout full) {
  Json json = recurrent("grt", scale, row == 1 ? recurrence_only : full);
  json["state_noise"] = row >= 3 ? 0.1 : 0.0;
  json["use_injection"] = row >= 4;
  json["use_gate"] = row >= 5;
  return json;
}

std::map<std::string, Json> presets() {
  const Json small = scale(768, 12), medium = scale(1024, 16), large = scale(1280, 20);
  std::map<std::string, Json> all = {
      {"gpt2-small", dense(small, 12)},
      {"gpt2-medium", dense(medium, 24)},
      {"gpt2-large", dense(large, 36)},
      {"dense-nano", dense(nano(), 8)},
  };
  for (const std::string method : {"grt", "poisson", "mor", "rrt", "ouro"}) {
    all[method + "-small"] = recurrent(method, small, {1, 1, 10, 1});
    all[method + "-small-isoparam"] = recurrent(method, small, {1, 10, 10, 1});
    all[method + "-medium"] = recurrent(method, medium, {2, 5, 4, 2});
    all[method + "-medium-isoparam"] = recurrent(method, medium, {2, 20, 4, 2});
    all[method + "-large"] = recurrent(method, large, {1, 5, 6, 5});
    all[method + "-large-isoparam"] = recurrent(method, large, {3, 30, 6, 3});
    all[method + "-nano"] = recurrent(method, nano(), {1, 1, 6, 1});
    all[method + "-nano-isoparam"] = recurrent(method, nano(), {1, 6, 6, 1});
  }
  all["rrt-small-isoparam"].update(Json{{"lora_rank", 1}});
  for (int row = 1; row <= 5; ++row) {
    all["grt-nano-ablation-" + std::to_string(row)] = ablation(nano(), row, {0, 1, 8, 0}, {1, 1, 6, 1});
    all["grt-small-ablation-" + std::to_string(row)] = ablation(small, row, {0, 1, 12, 0}, {1, 1, 10, 1});
    all["grt-medium-ablation-" + std::to_string(row)] = ablation(medium, row, {0, 6, 4, 0}, {2, 5, 4, 2});
  }
  return all;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, json] : presets()) names.push_back(name);
  return names;
}

Json find_model(const std::string& preset_or_file) {
  const auto all = presets();
  if (const auto it = all.find(preset_or_file); it != all.end()) return it->second;
  std::error_code ignored;
  check(std::filesystem::exists(preset_or_file, ignored), "--model {}: neither a file nor a preset; the presets: {}",
        preset_or_file, fmt::join(preset_names(), ", "));
  return read_json(preset_or_file);
}

}  // namespace grt
