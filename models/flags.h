// The keys of config.json as flags: --d-model 256 sets d_model.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/flags.h"
#include "models/config.h"

namespace grt {

class ModelFlags {
 public:
  void declare(Flags& flags);       // one flag for each key of any architecture
  bool any() const;                 // was one given?
  void apply(Json& model) const;    // sets the keys that were given; the model's own reader checks them
  Json given() const;               // {"d-model": "256"}: those that were given, as text
  void restore(const Json& given);  // adds flags of an earlier run where none is given now

 private:
  std::map<std::string, std::optional<std::string>> values_;  // by key
};

}  // namespace grt
