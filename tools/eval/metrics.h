// What the log-likelihoods of a task's requests amount to.
#pragma once

#include <optional>

#include "tools/eval/scoring.h"

namespace grt {

struct Measure {
  double value = 0, standard_error = 0;
  std::int64_t correct = 0;  // documents; of a share
};

struct Metrics {
  std::int64_t documents = 0;
  Measure acc;                                  // a share, 0..1
  std::optional<Measure> acc_norm, perplexity;  // where the task has them

  const Measure& headline() const { return acc_norm ? *acc_norm : acc; }
};

// `scores`: of the choices of all documents, one after another.
//
// The likeliest choice is the first of equals. The standard error of a share p is sqrt(p (1 - p) / (n - 1)). Perplexity
// is exp(-mean log-likelihood of a document's target), per target and not per token; its standard error is that of the
// mean times the perplexity (the harness draws bootstrap samples instead).
Metrics metrics_of(const TaskDocuments& task, std::span<const Score> scores);

}  // namespace grt
