#include "tools/analysis/alike.h"

#include <algorithm>

#include "train/host.h"

namespace grt {
namespace {

constexpr std::int64_t kCkaTokens = 1 << 16;
constexpr std::int64_t kMiniBatch = 256;

std::vector<std::string> step_labels(const LanguageModel& model) {
  std::vector<std::string> labels;
  const std::string architecture = model.config().architecture;
  if (architecture == "poisson")
    labels.push_back("initial");
  else if (architecture != "dense")
    labels.push_back(model.config_json().value("n_prelude", 1) > 0 ? "prelude" : "embedding");
  for (int r = 1; r <= model.depths().full; ++r) labels.push_back(std::to_string(r));
  return labels;
}

}  // namespace

StateSimilarity::StateSimilarity(const LanguageModel& model, const LanguageModel* twin, std::int64_t tokens)
    : labels_(step_labels(model)),
      full_(model.depths().full),
      first_(labels_.size() > static_cast<std::size_t>(full_) ? 0 : 1),
      stride_(std::max<std::int64_t>(1, tokens / kCkaTokens)),
      cpu_(open_cpu()),
      widths_(labels_.size(), model.config().d_model) {
  if (twin) {
    twin_labels_ = step_labels(*twin);
    twin_full_ = twin->depths().full;
    widths_.insert(widths_.end(), twin_labels_.size(), twin->config().d_model);
  }
  rows_.resize(widths_.size());
}

void StateSimilarity::see(std::string_view what, int step, const Tensor& value) {
  if (what == "state" && step <= full_) take(static_cast<std::size_t>(step - first_), value);
}

void StateSimilarity::see_twin(std::string_view what, int step, const Tensor& value) {
  const std::int64_t first = twin_labels_.size() > static_cast<std::size_t>(twin_full_) ? 0 : 1;
  if (what == "state" && step <= twin_full_) take(labels_.size() + static_cast<std::size_t>(step - first), value);
}

void StateSimilarity::take(std::size_t representation, const Tensor& value) {
  const std::vector<double> all = host_values(value);
  const std::int64_t width = widths_[representation], tokens = value.shape().rows();
  std::vector<double>& rows = rows_[representation];
  for (std::int64_t i = (stride_ - seen_ % stride_) % stride_; i < tokens; i += stride_)
    rows.insert(rows.end(), all.begin() + i * width, all.begin() + (i + 1) * width);
}

void StateSimilarity::end_batch(std::int64_t tokens) {
  seen_ += tokens;
  while (static_cast<std::int64_t>(rows_[0].size()) >= kMiniBatch * widths_[0]) compare(kMiniBatch);
}

void StateSimilarity::compare(std::int64_t rows) {
  std::vector<Tensor> batch;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto count = static_cast<std::size_t>(rows * widths_[i]);
    batch.push_back(Tensor::from<double>({rows, widths_[i]}, std::span(rows_[i]).first(count), *cpu_));
    cpu_->sync();  // before the rows move
    rows_[i].erase(rows_[i].begin(), rows_[i].begin() + static_cast<std::ptrdiff_t>(count));
  }
  cka_.add(batch);
}

Json StateSimilarity::result() {
  const std::int64_t left = static_cast<std::int64_t>(rows_[0].size()) / widths_[0];
  if (cka_.batches() == 0 && left >= 4) compare(left);
  if (cka_.batches() == 0) return nullptr;
  const auto all = cka_.matrix();
  const std::size_t own = labels_.size();
  const auto part = [&](std::size_t begin, std::size_t count) {
    Json rows = Json::array();
    for (std::size_t i = 0; i < own; ++i)
      rows.push_back(std::vector<double>(all[i].begin() + static_cast<std::ptrdiff_t>(begin),
                                         all[i].begin() + static_cast<std::ptrdiff_t>(begin + count)));
    return rows;
  };
  Json json{{"labels", labels_}, {"matrix", part(0, own)}};
  if (!twin_labels_.empty()) json["twin"] = {{"labels", twin_labels_}, {"matrix", part(own, twin_labels_.size())}};
  return json;
}

}  // namespace grt
