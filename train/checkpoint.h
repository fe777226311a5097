// Checkpoints: a directory OUT/step-00000500 with config.json, model.safetensors, optimizer.safetensors and
// trainer.json; OUT/latest and OUT/best name such directories. A directory appears under its name only when it is
// complete and on the disk, so a crash at any moment leaves the previous checkpoints usable.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/files.h"
#include "core/safetensors.h"
#include "models/model.h"

namespace grt {

// The step directory that the file OUT/NAME, `latest` or `best`, names; empty where there is no such file.
std::string pointed_to(const fs::path& out, const char* name);

bool is_checkpoint(const fs::path& directory);  // does it hold config.json and model.safetensors?

// The directory with config.json and model.safetensors that a checkpoint argument means: OUT (its `latest`),
// OUT/step-N, or any directory that holds both files. Throws Error naming `where` and what is missing.
fs::path resolve_checkpoint(const fs::path& where);

// The model of a checkpoint, its weights loaded, ready for inference; with `packed`, those of products in that type.
std::unique_ptr<LanguageModel> load_model(const fs::path& checkpoint, Device& device, DType dtype = DType::f32,
                                          std::optional<DType> packed = {});

inline constexpr const char* kTiedHead = "lm_head.weight";  // a second copy of wte.weight, which some exports store

// Fills declared and allocated parameters from a safetensors file that check_weights() accepts; rows of padding are set
// to zero. A kTiedHead must equal wte.weight, and is dropped.
void load_parameters(Params& params, const fs::path& file);

// Throws Error, naming `where` and the tensor, unless the file holds the declared parameters in their shapes, and but
// for a kTiedHead nothing else.
void check_weights(const Params& params, const Safetensors& file, const std::string& where);

struct TrainerState {
  std::int64_t step = 0;       // finished updates
  std::int64_t tokens = 0;     // trained on so far
  std::int64_t sequences = 0;  // drawn so far: the position in sequential data
  std::int64_t validated = 0;  // the step of the last finished validation
  std::optional<double> best_val_loss;
  Json flags;                                      // of the run, by flag name
  std::string trained_on = {}, validated_on = {};  // which tokens, by fingerprint; empty: not known
};

// AdamW's moments, flat blocks in the layout of Params.
struct Moments {
  Tensor m, v;
};

std::string step_name(std::int64_t step);  // "step-00000500"

// The number of a checkpoint's directory name, or none: "step-00000500" gives 500.
std::optional<std::int64_t> step_number(const std::string& name);

// Writes OUT/step-N and points OUT/best, if it is, and OUT/latest to it; then removes the oldest checkpoints beyond
// `keep`, sparing `best`. Throws Error naming the file and the system's reason; whatever was in OUT stays usable.
// Returns why older ones are still there, or nothing.
std::string save_checkpoint(const fs::path& out, const LanguageModel& model, const Moments& moments,
                            const TrainerState& state, bool best, int keep);
// What became known of the checkpoint of state.step after it was saved: its trainer.json, and that it is the best.
void amend_checkpoint(const fs::path& out, const TrainerState& state, bool best);
TrainerState load_trainer_state(const fs::path& checkpoint);
void load_moments(const Params& params, const Moments& moments, const fs::path& checkpoint);

}  // namespace grt
