// A recurrent model that begins with the weights of a dense one: `train --init-from DENSE --init-map middle`.
#pragma once

#include <string>
#include <vector>

#include "core/files.h"
#include "models/model.h"

namespace grt {

struct BlockCopy {
  std::string to, from;  // "core.0", "h.5"
};

// Of a dense model of L blocks the first p become the prelude, the last c the coda. The core's b are consecutive blocks
// from the middle of those between: h.{p + (L - p - c - b) / 2}, rounded down, is core.0. Throws Error, naming the key,
// unless both models agree in all that the copied weights mean and there are blocks enough.
std::vector<BlockCopy> middle_blocks(const LanguageModel& model, const LanguageModel& dense);

// Reads these blocks, both embeddings and ln_f from a dense model's safetensors file into `model`, whose other weights
// (injection, gate, adapter, routers, low-rank parts, exit gate) stay as they are. The dense model needs no memory.
void load_from_dense(LanguageModel& model, const LanguageModel& dense, const fs::path& file);

}  // namespace grt
