// The whole analysis of a checkpoint as one JSON object, the content of analysis.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "models/model.h"
#include "tools/analysis/source.h"

namespace grt {

struct AnalysisConfig {
  std::optional<std::string> checkpoint, data, out, twin, prompt, target, depth_beyond;
  std::vector<std::string> compare;
  std::int64_t tokens = 200000, batch_size = 8;
  std::uint64_t seed = 1337;
  bool overwrite = false;

  template <class V>
  void fields(V&& v) {
    v("checkpoint", checkpoint, "what to analyze: a run's directory, or one with config.json and model.safetensors");
    v("data", data, "token file, directory of shards or glob to analyze it on");
    v("out", out, "directory for analysis.json, the CSV files, report.html and overview.svg; made, or empty");
    v("twin", twin, "checkpoint whose states are compared with this one's, such as a dense model of as many blocks");
    v("compare", compare,
      "checkpoints whose early exits, each in windows of its own context, are drawn beside this one's");
    v("tokens", tokens, "how many of the first tokens of the data are predicted");
    v("batch-size", batch_size, "windows at a time; the results do not depend on it");
    v("prompt", prompt, "text whose next word is followed over the exits, besides the built-in ones");
    v("target", target, "that next word (default: what the model would say)");
    v("depth-beyond", depth_beyond,
      "exits deeper than trained, such as 8,10,12, or none (default: a third, two thirds and once R more)");
    v("seed", seed, "of poisson's initial state, and of the directions that gains are searched from");
    v("overwrite", overwrite, "replace an earlier analysis in --out");
  }
};

// Throws Error naming the flag whose value cannot be used.
Json analyze(const AnalysisConfig& config, Device& device, DType dtype);

}  // namespace grt
