// An analysis in a screen of text.
#pragma once

#include <string>

#include "core/json.h"

namespace grt {

std::string summary(const Json& analysis);

}  // namespace grt
