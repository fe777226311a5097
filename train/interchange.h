// Weights under other names and layouts than ours, read into a model; and checkpoint directories without a run.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/model.h"
#include "train/tensor_files.h"

namespace grt {

// Where a parameter's values come from: a tensor's name, and whether it is stored [in, out] where ours is [out, in].
struct Origin {
  std::string name;
  bool transposed = false;
};
using Origins = std::map<std::string, Origin>;  // by our name

// Every parameter from the tensor of the same name.
Origins same_names(const Params& params);

// A file {"our name": "their name", "our other": {"name": "theirs", "transpose": true}}. A * stands for a number, the
// same on both sides: "core.*.ln_1.weight": "blocks.*.norm1.weight". A name without * goes before one with it; what the
// file does not mention has its own name. Throws Error for what is not ours or is not such a file.
Origins read_map(const std::string& file, const Params& params);

// Throws one Error that lists the parameters without a tensor and the tensors without a use, or names a tensor of
// another shape. A padded table may be stored without its padding. A tensor for which `ignored` holds needs no use, and
// lm_head.weight is compared by read_tensors().
void check_origins(const Params& params, const TensorFiles& files, const Origins& origins,
                   const std::function<bool(const std::string&)>& ignored);

// Fills allocated parameters (f32, on the CPU); rows of padding are set to zero. Throws Error where a separate
// lm_head.weight differs from wte.weight: our head is tied.
void read_tensors(Params& params, const TensorFiles& files, const Origins& origins);

// The parameter as f32 or rounded to BF16 (to the nearest, ties to even).
Tensor stored_as(const Tensor& f32, DType dtype);

// Throws Error where something other than an empty directory is at `out`.
void check_new(const fs::path& out);

// config.json and model.safetensors in our format, in a new directory.
void write_checkpoint(const fs::path& out, const LanguageModel& model, DType dtype,
                      const std::map<std::string, std::string>& metadata);

}  // namespace grt
