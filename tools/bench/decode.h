// The speed of decoding one sequence, of several models side by side.
#pragma once

#include "tools/bench/models.h"
#include "tools/bench/report.h"

namespace grt {

void bench_decode(const ModelBench& bench, Device& device, Report& report);

}  // namespace grt
