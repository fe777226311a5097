#include "models/flags.h"

#include <algorithm>

namespace grt {
namespace {

std::string flag_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// "256" and "true" as JSON reads them; anything else is a string.
Json json_value(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value : Json(text);
}

}  // namespace

void ModelFlags::declare(Flags& flags) {
  for (const ConfigKey& key : config_keys())
    flags.declare(flag_name(key.name), values_[key.name], key.help + " (default: the model's)");
}

bool ModelFlags::any() const {
  return std::any_of(values_.begin(), values_.end(), [](const auto& v) { return v.second.has_value(); });
}

void ModelFlags::apply(Json& model) const {
  for (const auto& [key, text] : values_)
    if (text) model[key] = json_value(*text);
}

Json ModelFlags::given() const {
  Json given = Json::object();
  for (const auto& [key, text] : values_)
    if (text) given[flag_name(key)] = *text;
  return given;
}

void ModelFlags::restore(const Json& given) {
  for (auto& [key, text] : values_)
    if (const auto it = given.find(flag_name(key)); !text && it != given.end() && it->is_string())
      text = it->get<std::string>();
}

}  // namespace grt
