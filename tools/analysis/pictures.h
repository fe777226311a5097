// The report's pictures, each drawn from one part of analysis.json. A picture is asked for only where its part exists.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "tools/analysis/svg.h"

namespace grt {

svg::Picture loss_by_depth(const Json& analysis);
svg::Picture kl_by_depth(const Json& analysis);
svg::Picture loss_saved_by_step(const Json& analysis);

svg::Picture gate_means(const Json& gates);
svg::Picture gate_openness(const Json& gates);
svg::Picture gate_extremes(const Json& gates);
svg::Picture gate_histograms(const Json& gates);
svg::Picture forced_gates(const Json& gates);
svg::Picture reinjections(const Json& list);

svg::Picture norms_by_step(const Json& dynamics);
svg::Picture cosines_by_step(const Json& dynamics);
svg::Picture gains_by_step(const Json& dynamics);
svg::Picture movement_kinds(const Json& dynamics);

svg::Picture state_similarity(const Json& cka);
svg::Picture twin_similarity(const Json& cka);
svg::Picture difficulty_line(const Json& difficulty);
svg::Picture gate_by_difficulty(const Json& difficulty);

svg::Picture singular_values(const Json& gate);
svg::Picture row_cosines(const Json& inject);
svg::Picture head_kinds(const Json& heads);

// The trajectories of one class, each a curve.
svg::Picture target_probabilities(const std::string& kind, const std::vector<const Json*>& trajectories,
                                  double full_depth);
svg::Picture early_exits(const Json& models, double width);

std::string quoted_target(const Json& trajectory);  // "… the end of the prompt → target", for legends

}  // namespace grt
