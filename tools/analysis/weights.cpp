#include "tools/analysis/weights.h"

#include "tools/analysis/spectrum.h"
#include "tools/analysis/statistics.h"
#include "train/host.h"

namespace grt {
namespace {

// fc_in (d, 2d) takes [LN_state(h) ; LN_anchor(h_pre)].
Json gate_spectra(const Tensor& weight) {
  const std::vector<double> values = host_values(weight);
  const std::int64_t rows = weight.dim(0), d = weight.dim(1) / 2;
  const std::vector<double> state = singular_values(columns_of(values, rows, 0, d), rows, d);
  const std::vector<double> anchor = singular_values(columns_of(values, rows, d, d), rows, d);
  return {{"state_singular_values", state}, {"anchor_singular_values", anchor}, {"ratio", anchor[0] / state[0]}};
}

Json injection_cosines(const std::string& name, const Tensor& weight) {
  Mean mean, above;
  Histogram histogram(-1, 1, 20);
  for (const double c : half_cosines(host_values(weight), weight.dim(0))) {
    mean.add(c);
    above.add(c > 0.5 ? 1 : 0);
    histogram.add(c);
  }
  return {{"tensor", name},
          {"row_cosine_mean", mean.value()},
          {"row_cosine_above_0.5", above.value()},
          {"histogram", histogram.shares()}};
}

}  // namespace

Json measure_weights(const LanguageModel& model) {
  Json weights = Json::object();
  if (const Param* gate = model.params().find("gate.fc_in.weight")) weights["gate"] = gate_spectra(gate->var.value());
  for (const char* name : {"inject.weight", "adapter.weight"})
    if (const Param* inject = model.params().find(name))
      weights["inject"] = injection_cosines(name, inject->var.value());
  return weights;
}

}  // namespace grt
