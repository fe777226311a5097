#include "tools/bench/models.h"

#include <algorithm>
#include <array>

#include "core/philox.h"

namespace grt {

std::vector<std::string> models_of_scale(const std::string& scale) {
  static constexpr std::array kScales = {"nano", "small", "medium", "large"};
  check(std::find(kScales.begin(), kScales.end(), scale) != kScales.end(), "--scale: must be {}, not \"{}\"",
        fmt::join(kScales, ", "), scale);
  std::vector<std::string> models = {scale == "nano" ? "dense-nano" : "gpt2-" + scale};
  for (const char* family : {"grt", "poisson", "mor", "rrt", "ouro"}) models.push_back(family + ("-" + scale));
  return models;
}

std::unique_ptr<LanguageModel> bench_model(Json json, const std::string& where, std::int64_t context_length,
                                           Device& device) {
  if (context_length > 0) json["context_length"] = context_length;
  auto model = make_model(json, where);
  model->params().allocate(device, DType::f32);
  model->params().initialize(1337);
  return model;
}

std::unique_ptr<LanguageModel> bench_model(const std::string& name, std::int64_t context_length, Device& device) {
  return bench_model(find_model(name), "--model " + name, context_length, device);
}

Tensor random_ids(Shape shape, std::int64_t vocab, std::uint32_t site, Device& device) {
  std::vector<std::int32_t> ids(shape.numel());
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(random_below({1, 0, site}, i, static_cast<std::uint64_t>(vocab)));
  return Tensor::from<std::int32_t>(shape, ids, device);
}

}  // namespace grt
