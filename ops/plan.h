// A device that computes nothing and only keeps the books: run a training step on it, and its peak() is the memory that
// the same step takes elsewhere, to the byte, at any depth and batch size. Its tensors have no memory behind them.
#pragma once

#include <memory>

#include "core/device.h"

namespace grt {

std::unique_ptr<Device> open_plan();

}  // namespace grt
