// How the prediction of one next word takes shape over the exits.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "tools/analysis/source.h"
#include "train/tokenizer.h"

namespace grt {

// "trajectories" of analysis.json: of prompts of three classes, and of `prompt` if given. Without a target, what the
// model itself would say at full depth. Throws Error naming --prompt where that is longer than the context.
Json measure_trajectories(const Source& source, const Tokenizer& tokenizer, const std::optional<std::string>& prompt,
                          const std::optional<std::string>& target);

}  // namespace grt
