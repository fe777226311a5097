#include "train/tables.h"

#include <cmath>
#include <optional>
#include <set>

#include "models/config.h"
#include "train/describe.h"

namespace grt {
namespace {

// As public notes on the paper quote them. GFLOPs are per token, in its own counting.
struct Printed {
  const char* preset;
  double parameters;  // millions; 0: none known
  double gflops;      // 0: none known
};
constexpr Printed kPrinted[] = {
    {"gpt2-small", 124, 1.84},        {"gpt2-medium", 354, 7.35},
    {"gpt2-large", 774, 21.1},        {"grt-small", 35, 0},
    {"grt-medium", 127, 0},           {"grt-large", 293, 0},
    {"grt-small-isoparam", 0, 15.64}, {"grt-medium-isoparam", 0, 26.4},
    {"grt-large-isoparam", 0, 109.0},
};
constexpr double kRounding = 0.015;  // of a figure with two or three digits

Printed printed_of(const std::string& preset) {
  for (const Printed& p : kPrinted)
    if (preset == p.preset) return p;
  return {"", 0, 0};
}

bool follows(double printed, double own) { return std::abs(printed / own - 1) <= kRounding; }

std::string remark(const Printed& printed, double parameters, double formula) {
  std::string text;
  if (printed.parameters > 0 && !follows(printed.parameters, parameters / 1e6))
    text = fmt::format("printed parameters: the layout has {:.1f} M", parameters / 1e6);
  if (printed.gflops > 0 && !follows(printed.gflops, formula / 1e9))
    text += fmt::format("{}printed FLOPs: {:.1f} x the paper's formula", text.empty() ? "" : "; ",
                        printed.gflops * 1e9 / formula);
  return text;
}

Json or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

// Small, medium, large, nano; in each the dense model first, then the methods, then the ladder.
std::vector<std::string> in_order(std::vector<std::string> names) {
  const auto rank = [](const std::string& name) {
    int scale = 0, kind = name.starts_with("gpt2") || name.starts_with("dense") ? 0 : 1;
    for (const char* s : {"small", "medium", "large", "nano"}) {
      if (name.find(s) != name.npos) break;
      ++scale;
    }
    if (name.find("isoparam") != name.npos) kind = 2;
    if (name.find("ablation") != name.npos) kind = 3;
    return std::pair(scale, kind);
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  return names;
}

Json configuration(const std::string& preset) {
  const auto model = make_model(find_model(preset), preset);
  const Json d = describe_model(*model, model->config().context_length, model->depths().full);
  const Json& flops = d["flops_per_token"];
  const Printed printed = printed_of(preset);
  int applications = 0;
  for (const Json& a : d["applications"]) applications += a["times"].get<int>();
  const double parameters = d["parameters"];
  return {{"preset", preset},
          {"layout", d["layout"]},
          {"blocks", d["applications"].size()},
          {"applications", applications},
          {"parameters", d["parameters"]},
          {"parameters_without_embeddings", d["parameters_without_embeddings"]},
          {"paper_body", flops["paper_body"]},
          {"paper_head", flops["paper_head"]},
          {"executed_body", flops["executed_body"]},
          {"executed_head", flops["executed_head"]},
          {"printed_parameters", or_null(printed.parameters * 1e6)},
          {"printed_flops", or_null(printed.gflops * 1e9)},
          {"remark", remark(printed, parameters, flops["paper_body"])}};
}

// "each feature", "each token" or "none": how many numbers per token the layer named `name` puts out.
const char* granularity(const LanguageModel& model, const std::string& name) {
  const Param* p = model.params().find(name);
  if (!p) return "none";
  return p->shape[0] == model.config().d_model ? "each feature" : "each token";
}

bool has_parameter(const LanguageModel& model, const std::string& prefix) {
  for (const Param& p : model.params().all())
    if (p.name.starts_with(prefix)) return true;
  return false;
}

std::string gate_of(const LanguageModel& model) {
  if (has_parameter(model, "gate.")) return fmt::format("update, {}", granularity(model, "gate.fc_out.weight"));
  if (has_parameter(model, "router.")) return "route, each token";
  if (has_parameter(model, "exit_gate.")) return fmt::format("exit, {}", granularity(model, "exit_gate.weight"));
  return "none";
}

std::string depth_range(const DepthRange& d) {
  if (d.lowest == d.full && d.highest == d.full) return std::to_string(d.full);
  return d.highest == kAnyDepth ? fmt::format("{} and deeper", d.lowest) : fmt::format("{}..{}", d.lowest, d.highest);
}

const char* yes(bool value) { return value ? "yes" : "no"; }

Json properties(const std::string& preset) {
  const auto model = make_model(find_model(preset), preset);
  const DepthRange depths = model->depths();
  const std::vector<std::string> applied = model->applications(depths.full);
  const bool shares = std::set(applied.begin(), applied.end()).size() < applied.size();
  const Json config = model->config_json();
  const auto positive = [&](const char* key) { return config.contains(key) && config[key].get<double>() > 0; };
  return {{"architecture", model->config().architecture},
          {"weights shared over depth", yes(shares)},
          {"weights of each step's own", yes(has_parameter(*model, "lora.") || has_parameter(*model, "router."))},
          {"exits", depth_range(depths)},
          {"training depth", model->default_depth_rule().sampler},
          {"shallower exits trained for", yes(model->trains_exits())},
          {"prelude enters every step", yes(has_parameter(*model, "inject.") || has_parameter(*model, "adapter."))},
          {"input-dependent gate", gate_of(*model)},
          {"randomness in the state", yes(positive("state_noise") || config.value("initial_state", "") == "random")},
          {"term added to the loss", yes(positive("router_aux_weight") || positive("entropy_weight"))}};
}

}  // namespace

Json configuration_table() {
  Json rows = Json::array();
  for (const std::string& preset : in_order(preset_names())) rows.push_back(configuration(preset));
  return rows;
}

Json property_table() {
  Json rows = Json::array();
  for (const char* preset : {"gpt2-small", "grt-small", "poisson-small", "mor-small", "rrt-small", "ouro-small"})
    rows.push_back(properties(preset));
  return rows;
}

}  // namespace grt
