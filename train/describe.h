// What a model consists of, and what a file of weights holds, as JSON: the content of `inspect`.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "core/safetensors.h"
#include "models/model.h"

namespace grt {

std::string layout(const Json& config);  // "1+1×10+1" (prelude + core x recurrences + coda), or "12 blocks"

// The model's configuration, parameter counts, tensors with their initial distributions, which block is applied at
// which steps, FLOPs per token with `context` tokens, and the key/value cache in f32, all at `depth`.
// Reads no weights: they need not be allocated.
Json describe_model(const LanguageModel& model, std::int64_t context, int depth);

// Each tensor of the file: name, dtype, shape, count and, where the dtype is a floating-point one, the least, the
// greatest and the root mean square of its finite values and the number of the others.
Json describe_tensors(const Safetensors& file);

}  // namespace grt
