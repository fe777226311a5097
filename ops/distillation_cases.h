// The cases of `distillation`, a part of the table in ops/cases.h.
#pragma once

#include "ops/cases.h"

namespace grt {

// z (..., C) and a teacher's state of `teacher_width`; both heads have `padded` rows.
OpCase distillation_case(std::string variant, Shape z, std::int64_t teacher_width, std::int64_t padded,
                         std::int64_t vocab, Distillation rule, std::int64_t chunk_bytes = kLossChunkBytes);
std::vector<OpCase> distillation_cases();  // of small and odd sizes

}  // namespace grt
