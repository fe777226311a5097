// GPT-2 folders as Hugging Face's transformers write and read them: config.json and model.safetensors (or shards), with
// Conv1D weights [in, out] and biases everywhere. Source: modeling_gpt2.py and configuration_gpt2.py of transformers.
#pragma once

#include <string>

#include "train/interchange.h"

namespace grt {

// Our configuration of the dense model that a GPT-2 config.json describes, with biases. Throws Error naming the key for
// what our model cannot be: another activation, epsilon, scale of attention or inner width.
Json config_from_huggingface(const Json& theirs, const std::string& where);

// Where our parameters are in such a folder, and which of its tensors are buffers: causal masks.
Origins huggingface_origins(const Params& params);
bool is_huggingface_buffer(const std::string& name, int layers);

// A model that was written without biases has zeros there: gives it back as it was. `theirs`: its config.json.
std::unique_ptr<LanguageModel> without_written_biases(std::unique_ptr<LanguageModel> model, const Json& theirs);

// A folder that GPT2LMHeadModel.from_pretrained loads. Biases that the model does not have are written as zeros; rows
// of padding are not written. Throws Error unless the model is dense.
void write_huggingface(const fs::path& out, const LanguageModel& model, DType dtype);

}  // namespace grt
