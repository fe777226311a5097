#include "train/describe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/device.h"

namespace grt {
namespace {

Json tensors_of(const Params& params) {
  Json list = Json::array();
  for (const Param& p : params.all()) {
    Json shape = Json::array();
    for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(p.shape[i]);
    list.push_back({{"name", p.name},
                    {"shape", shape},
                    {"count", p.shape.numel()},
                    {"init_mean", p.init.mean},
                    {"init_std", p.init.std}});
  }
  return list;
}

// Blocks in the order of their first application; steps count from 1.
Json applications_of(const LanguageModel& model, int depth) {
  Json list = Json::array();
  std::map<std::string, std::size_t> places;
  int step = 0;
  for (const std::string& block : model.applications(depth)) {
    const auto [place, is_new] = places.emplace(block, list.size());
    if (is_new) list.push_back({{"block", block}, {"times", 0}, {"steps", Json::array()}});
    Json& entry = list[place->second];
    entry["times"] = entry["times"].get<int>() + 1;
    entry["steps"].push_back(++step);
  }
  return list;
}

struct Statistics {
  double least = 0, greatest = 0, squares = 0;
  std::int64_t finite = 0;
};

template <class T>
Statistics statistics(const T* values, std::int64_t count) {
  Statistics s;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = values[i];
    if (!std::isfinite(x)) continue;
    s.least = s.finite ? std::min(s.least, x) : x;
    s.greatest = s.finite ? std::max(s.greatest, x) : x;
    s.squares += x * x;
    ++s.finite;
  }
  return s;
}

Shape shape_of(const SafetensorsEntry& entry) {
  switch (entry.shape.size()) {
    case 0:
      return {};
    case 1:
      return {entry.shape[0]};
    case 2:
      return {entry.shape[0], entry.shape[1]};
    case 3:
      return {entry.shape[0], entry.shape[1], entry.shape[2]};
    default:
      return {entry.shape[0], entry.shape[1], entry.shape[2], entry.shape[3]};
  }
}

void add_statistics(Json& tensor, const Safetensors& file, const std::string& name, const SafetensorsEntry& entry,
                    Device& device) {
  const bool readable = entry.dtype == "F32" || entry.dtype == "F64" || entry.dtype == "F16" || entry.dtype == "BF16";
  if (!readable || entry.shape.size() > Shape::kMaxRank) return;
  const Tensor values = Tensor::empty(shape_of(entry), entry.dtype == "F64" ? DType::f64 : DType::f32, device);
  file.read(name, values);
  const Statistics s =
      visit_real(values.dtype(), [&]<class T>() { return statistics(values.data<T>(), values.numel()); });
  if (s.finite > 0) {
    tensor["min"] = s.least;
    tensor["max"] = s.greatest;
    tensor["rms"] = std::sqrt(s.squares / static_cast<double>(s.finite));
  }
  tensor["not_finite"] = values.numel() - s.finite;
}

}  // namespace

std::string layout(const Json& config) {
  if (config.contains("n_layers")) return fmt::format("{} blocks", config["n_layers"].get<int>());
  return fmt::format("{}+{}×{}+{}", config["n_prelude"].get<int>(), config["n_core"].get<int>(),
                     config["n_recurrences"].get<int>(), config["n_coda"].get<int>());
}

Json describe_model(const LanguageModel& model, std::int64_t context, int depth) {
  model.check_depth(depth);
  const BackboneConfig& c = model.config();
  const Params& params = model.params();
  const std::int64_t embeddings = params.find("wte.weight")->shape.numel() + params.find("wpe.weight")->shape.numel();
  const Flops flops = model.flops(context, depth);
  const KvLayout applied = model.kv_layout(depth);
  const auto cache_of = [&](const char* strategy, KvStrategy of) {
    const std::int64_t slots = applied.slots(of);
    return Json{{"strategy", strategy}, {"slots", slots}, {"bytes_per_token", slots * 2 * c.d_model * 4}};
  };
  Json cache = cache_of("full", KvStrategy::full);
  if (model.reduces_kv()) cache["reduced"] = cache_of("mean, last, first", KvStrategy::mean);
  const Json config = model.config_json();
  return {{"architecture", c.architecture},
          {"layout", layout(config)},
          {"config", config},
          {"depth", depth},
          {"parameters", params.count()},
          {"parameters_without_embeddings", params.count() - embeddings},
          {"tensors", tensors_of(params)},
          {"applications", applications_of(model, depth)},
          {"flops_per_token",
           {{"context", context},
            {"paper_body", flops.paper_body},
            {"paper_head", flops.paper_head},
            {"executed_body", flops.executed_body},
            {"executed_head", flops.executed_head}}},
          {"kv_cache", cache}};
}

Json describe_tensors(const Safetensors& file) {
  const std::unique_ptr<Device> device = open_cpu();
  Json list = Json::array();
  for (const auto& [name, entry] : file.entries()) {
    std::int64_t count = 1;
    for (const std::int64_t extent : entry.shape) count *= extent;
    Json tensor = {{"name", name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"count", count}};
    add_statistics(tensor, file, name, entry, *device);
    device->release_idle();
    list.push_back(std::move(tensor));
  }
  return list;
}

}  // namespace grt
