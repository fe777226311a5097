// What the weights of the recurrence say without a text.
#pragma once

#include "core/json.h"
#include "models/model.h"

namespace grt {

Json measure_weights(const LanguageModel& model);  // "weights" of analysis.json; empty where there are none of these

}  // namespace grt
