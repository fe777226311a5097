// How time and memory of a training step grow with the length of a sequence, the width, the vocabulary, the depth (with
// and without recomputation) and the threads: each changed by itself, the other sizes being those of one model.
#pragma once

#include <string>

#include "tools/bench/report.h"
#include "tools/bench/training_step.h"

namespace grt {

// `model`: a preset or a configuration's file.
void bench_growth(const std::string& model, const StepShape& shape, int rounds, Device& device, Report& report);

}  // namespace grt
