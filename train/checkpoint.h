// Checkpoints: a directory OUT/step-00000500 with config.json, model.safetensors, optimizer.safetensors and
// trainer.json; OUT/latest and OUT/best name such directories. A directory appears under its name only when it is
// complete and on the disk, so a crash at any moment leaves the previous checkpoints usable.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/files.h"
#include "models/model.h"

namespace grt {

// The directory with config.json and model.safetensors that a checkpoint argument means: OUT (its `latest`),
// OUT/step-N, or any directory that holds both files. Throws Error naming `where` and what is missing.
fs::path resolve_checkpoint(const fs::path& where);

// The model of a checkpoint, its weights loaded, ready for inference; with `packed`, those of products in that type.
std::unique_ptr<LanguageModel> load_model(const fs::path& checkpoint, Device& device, DType dtype = DType::f32,
                                          std::optional<DType> packed = {});

// Fills declared and allocated parameters from a safetensors file: the same names and shapes, none missing, none left
// over; rows of padding are set to zero. A separate `lm_head.weight` equal to wte.weight is accepted and dropped.
void load_parameters(Params& params, const fs::path& file);

// Throws Error unless the file has every declared parameter in its shape.
void check_weights(const Params& params, const fs::path& file);

struct TrainerState {
  std::int64_t step = 0;       // finished updates
  std::int64_t tokens = 0;     // trained on so far
  std::int64_t sequences = 0;  // drawn so far: the position in sequential data
  std::int64_t validated = 0;  // the step of the last finished validation
  std::optional<double> best_val_loss;
  Json flags;  // of the run, by flag name
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
void save_checkpoint(const fs::path& out, const LanguageModel& model, const Moments& moments, const TrainerState& state,
                     bool best, int keep);
// What became known of the checkpoint of state.step after it was saved: its trainer.json, and that it is the best.
void amend_checkpoint(const fs::path& out, const TrainerState& state, bool best);
TrainerState load_trainer_state(const fs::path& checkpoint);
void load_moments(const Params& params, const Moments& moments, const fs::path& checkpoint);

}  // namespace grt
