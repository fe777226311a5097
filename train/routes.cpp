#include "train/routes.h"

#include <cmath>

#include "train/host.h"

namespace grt {
namespace {
constexpr double kUnit = 1.0 / (std::int64_t{1} << 32);  // of entropy, in nats: sums of integers know no order
}  // namespace

Routes::Routes() {
  look_ = [this](std::string_view what, int, const Tensor& value) {
    if (what == "routed") count(value);
    if (what == "router_logit") measure(value);
  };
}

const Look* Routes::next(std::int64_t batch, std::int64_t time) {
  batch_ = batch;
  time_ = time;
  steps_.clear();
  return &look_;
}

// One step; routed (B, k), where -1 fills up a row.
void Routes::count(const Tensor& routed) {
  steps_.resize(static_cast<std::size_t>(batch_ * time_));
  const std::vector<std::int32_t> positions = host_ids(routed);
  const std::int64_t k = routed.dim(1);
  for (std::int64_t i = 0; i < routed.numel(); ++i)
    if (positions[i] >= 0) ++steps_[i / k * time_ + positions[i]];
}

void Routes::share(Comm& comm) {
  for (std::int64_t* n : {&decisions_, &entropy_}) comm.sum(std::span(n, 1));
}

std::optional<double> Routes::entropy() const {
  if (decisions_ == 0) return std::nullopt;
  return static_cast<double>(entropy_) * kUnit / static_cast<double>(decisions_);
}

// H(sigmoid(z)) = ln(1 + e^-|z|) + |z| / (1 + e^|z|); what is not a number decides nothing.
void Routes::measure(const Tensor& logits) {
  for (const double z : host_values(logits)) {
    const double size = std::isfinite(z) ? std::abs(z) : 1000;
    entropy_ += std::llround((std::log1p(std::exp(-size)) + size / (1 + std::exp(size))) / kUnit);
    ++decisions_;
  }
}

}  // namespace grt
