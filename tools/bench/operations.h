// The speed of single operations, forward and backward, on the realistic cases of ops/cases.h.
#pragma once

#include <string>

#include "tools/bench/report.h"

namespace grt {

// `group` is "ops", or "attention" for that operation alone.
bool has_operation(const RowChoice& choice, const std::string& group);
void bench_ops(const RowChoice& choice, const std::string& group, Device& device, Report& report);

}  // namespace grt
