// A device that computes nothing and only keeps the books: run a training step on it, and its peak() is the memory that
// the same step takes elsewhere, to the byte, at any depth and batch size, and product_flops() the arithmetic of its
// products. Its tensors have no memory behind them.
#pragma once

#include <memory>

#include "core/device.h"
#include "ops/kernels.h"

namespace grt {

class PlanDevice : public Device {
 public:
  // Of every product so far, two for each multiply-add; of attention, the pairs that the causal mask lets through.
  virtual double product_flops() const = 0;
};

// `keeps`: of the device where the step will run (Kernels::keeps).
std::unique_ptr<PlanDevice> open_plan(Keeps keeps = Keeps::nothing);

}  // namespace grt
