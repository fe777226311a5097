// One sentence for each statistic whose name does not say what it is.
#pragma once

#include "core/json.h"

namespace grt {

Json definitions();  // "definitions" of analysis.json

}  // namespace grt
