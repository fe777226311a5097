// Model files of llm.c: a header of 256 int32 (magic 20240326, version 3: f32, 5: bf16, then maxT, V, L, NH, C, Vp),
// and the tensors of GPT-2 one kind after the other, those of all layers together. Source: train_gpt2.c of llm.c.
#pragma once

#include "core/files.h"
#include "models/model.h"

namespace grt {

class LlmcFile {
 public:
  // Reads the header. Throws Error naming the file and the field: no such file, values out of range, or a size that is
  // not the header's.
  explicit LlmcFile(const fs::path& path);

  const Json& config() const { return config_; }  // of our dense model: biases, tanh
  // Fills the allocated parameters (f32, on the CPU) of a model of this configuration, whose vocab_size alone may be
  // smaller. Rows of padding are set to zero.
  void read(Params& params) const;

 private:
  OpenFile file_;
  Json config_;
  std::int64_t element_ = 4;  // bytes
};

}  // namespace grt
