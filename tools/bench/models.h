// Models for timing: with random weights, by preset or configuration, several side by side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

namespace grt {

// The presets of a size (nano, small, medium or large), the dense one first: at full depth they apply equally many
// blocks. Throws Error naming --scale.
std::vector<std::string> models_of_scale(const std::string& scale);

// With random weights: of a preset or a configuration's file, or of a configuration. `where` names the configuration in
// errors; context_length 0: the configuration's.
std::unique_ptr<LanguageModel> bench_model(Json json, const std::string& where, std::int64_t context_length,
                                           Device& device);
std::unique_ptr<LanguageModel> bench_model(const std::string& name, std::int64_t context_length, Device& device);

Tensor random_ids(Shape shape, std::int64_t vocab, std::uint32_t site, Device& device);

}  // namespace grt
