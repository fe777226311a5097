// How alike the states of all steps are, and those of another model on the same tokens: CKA on a sample of the tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "models/model.h"
#include "tools/analysis/cka.h"

namespace grt {

class StateSimilarity {
 public:
  // `tokens`: how many the pass goes through, of which about kCkaTokens, evenly spread, are compared. `twin`: may be
  // null.
  StateSimilarity(const LanguageModel& model, const LanguageModel* twin, std::int64_t tokens);

  // What a look at the pass of the model and at that of its twin sees; then the batch is complete.
  void see(std::string_view what, int step, const Tensor& value);
  void see_twin(std::string_view what, int step, const Tensor& value);
  void end_batch(std::int64_t tokens);

  Json result();  // "cka"; what is left of the tokens becomes the last mini-batch where there was none before

 private:
  void take(std::size_t representation, const Tensor& value);
  void compare(std::int64_t rows);

  std::vector<std::string> labels_, twin_labels_;
  int full_, twin_full_ = 0;
  std::int64_t first_;  // label 0 is step 0, but for dense
  std::int64_t stride_;
  std::int64_t seen_ = 0;        // tokens of the batches before
  std::unique_ptr<Device> cpu_;  // which alone computes in f64
  Cka cka_;
  std::vector<std::vector<double>> rows_;  // by representation: the sampled tokens that wait for a full mini-batch
  std::vector<std::int64_t> widths_;
};

}  // namespace grt
