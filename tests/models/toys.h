// Small models with initial weights, and tokens for them.
#pragma once

#include <memory>
#include <vector>

#include "models/model.h"
#include "tests/support.h"

namespace grt::test {

inline std::unique_ptr<LanguageModel> build(const Json& json, DType dtype, std::uint64_t seed = 5,
                                            Device& device = cpu()) {
  auto model = make_model(json, "test");
  model->params().allocate(device, dtype);
  model->params().allocate_gradients();
  model->params().initialize(seed);
  return model;
}

// (batch, time) ids in [0, vocab), a function of `site`.
inline Tensor tokens(std::int64_t batch, std::int64_t time, std::uint32_t site = 1, std::int64_t vocab = 13) {
  std::vector<std::int32_t> ids(batch * time);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(random_below({1, 0, site}, i, vocab));
  return Tensor::from<std::int32_t>({batch, time}, ids, cpu());
}

}  // namespace grt::test
