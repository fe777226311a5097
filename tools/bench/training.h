// The speed of whole training steps, of several models side by side.
#pragma once

#include "tools/bench/models.h"
#include "tools/bench/report.h"

namespace grt {

void bench_train(const ModelBench& bench, Device& device, Report& report);

// A training step for each line that arrives on stdin, its seconds and the memory so far as a JSON line on stdout: for
// a comparison that lets two programs take turns (tools/bench_torch.py).
void train_on_request(const ModelBench& bench, Device& device);

}  // namespace grt
