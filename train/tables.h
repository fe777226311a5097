// The tables of `inspect --tables`: every configuration of the paper (arXiv:2608.15062) with its exact counts beside
// the figures that the paper prints, and what sets the architectures apart, derived from the models themselves.
#pragma once

#include "core/json.h"

namespace grt {

// One object for each named model: preset, layout, blocks of weights, block applications, parameters with and without
// embeddings, FLOPs per token at full depth and full context (the paper's formula and executed; body and head apart),
// the printed parameters and FLOPs (null where none are known) and a remark where these do not follow from the formula.
Json configuration_table();

// One object for each architecture: property -> what the model of that kind has.
Json property_table();

}  // namespace grt
