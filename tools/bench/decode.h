// The speed and memory of decoding, of several models side by side, by how weights are kept, what the cache keeps, and
// the number of sequences.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/report.h"

namespace grt {

struct DecodeBench {
  std::vector<std::string> models;     // presets or configurations' files; others are compared with the first
  std::string dtype;                   // of the factors of products: with bf16 weights are f32, and not packed
  std::vector<std::string> weights;    // f32, bf16, int8
  std::vector<std::string> kv;         // cache strategies; a model takes part in those that it has
  std::vector<std::string> sequences;  // numbers of sequences side by side
  std::int64_t prompt, tokens;         // of each sequence
  std::int64_t context_length;         // 0: the models', or what prompt and tokens need
  int rounds;
};

void check_decode(const DecodeBench& bench);  // throws Error naming the flag
void bench_decode(const DecodeBench& bench, Device& device, Report& report);

}  // namespace grt
