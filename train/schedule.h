// The learning rate of each step: a plain function of numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/error.h"

namespace grt {

struct Schedule {
  double lr = 6e-4, min_lr = 6e-5;
  std::int64_t warmup_steps = 0, lr_decay_steps = 0;
};

// Throws Error naming the flag whose value is not usable. Warm-up may be as long as the decay, or longer.
inline void check_schedule(const Schedule& s) {
  check(std::isfinite(s.lr) && s.lr >= 0, "--lr: must be a finite number >= 0, not {}", s.lr);
  check(std::isfinite(s.min_lr) && s.min_lr >= 0, "--min-lr: must be a finite number >= 0, not {}", s.min_lr);
  check(s.min_lr <= s.lr, "--min-lr: {} is above the peak, --lr {}", s.min_lr, s.lr);
  check(s.warmup_steps >= 0, "--warmup-steps: must be >= 0, not {}", s.warmup_steps);
  check(s.lr_decay_steps >= 0, "--lr-decay-steps: must be >= 0, not {}", s.lr_decay_steps);
}

// The rate of the update of step 0, 1, ...: a line up to lr over the warm-up (which wins where it outlasts the decay),
// half a cosine down to min_lr at lr_decay_steps, min_lr from there on.
inline double learning_rate(const Schedule& s, std::int64_t step) {
  if (step < s.warmup_steps) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps + 1);
  if (step >= s.lr_decay_steps) return s.min_lr;
  const double done =
      static_cast<double>(step - s.warmup_steps) / static_cast<double>(s.lr_decay_steps - s.warmup_steps);
  return s.min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (s.lr - s.min_lr);
}

}  // namespace grt
