// The kinds of all attention heads, in every application of their block.
#pragma once

#include "core/json.h"
#include "tools/analysis/source.h"

namespace grt {

Json measure_heads(const Source& source, const Shown& shown);  // "heads" of analysis.json

}  // namespace grt
