// `dense`: GPT-2.
#pragma once

#include "models/model.h"

namespace grt {

class Dense final : public LanguageModel {
 public:
  explicit Dense(const DenseConfig& config);

  void exits(const Tensor& tokens, std::span<const int> depths, const Pass& pass, const Visit& visit) const override;
  DepthRange depths() const override { return {1, config_.n_layers, config_.n_layers}; }
  DepthRule default_depth_rule() const override { return {"fixed", 1, config_.n_layers}; }
  std::vector<std::string> applications(int depth) const override;
  KvLayout kv_layout(int depth) const override { return {.before = depth}; }
  Flops flops(std::int64_t context, int depth) const override;
  Json config_json() const override { return to_json(config_); }

 private:
  DenseConfig config_;
  std::vector<Block> h_;
};

}  // namespace grt
