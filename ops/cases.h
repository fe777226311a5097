// The table of operations: for each one inputs, the call, what it must compute, and how much work that is.
// Gradient checks, the tests of values, types and threads, and the benchmark all read it: an operation that stands here
// is checked in every way.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace grt {

// Real values are normal with this standard deviation; with `ids` > 0 it is i32 in [0, ids) instead.
struct CaseInput {
  Shape shape;
  double std = 1;
  std::int64_t ids = 0;
};

// Floating-point operations of the products, and elements that must cross memory at least once.
struct Work {
  double flops = 0, elements = 0;
};

struct OpCase {
  std::string op;       // its name in ops/ops.h
  std::string variant;  // what is special about this case, or its size
  std::vector<CaseInput> inputs;
  std::function<Var(std::span<const Var>)> run = {};
  std::function<std::vector<double>(std::span<const Tensor>)> reference = {};  // of f64 inputs (ops/reference.h)
  Work forward = {}, backward = {};
  double tolerance = 1e-11;  // of the f64 values, relative to the largest of them
  bool differentiable = true;
  bool gradient_in_forward = false;  // when recorded: `backward` then is the work of both passes

  std::string name() const { return variant.empty() ? op : op + ": " + variant; }
};

// Of small and odd sizes, each also with its inputs used twice and under checkpoint().
std::vector<OpCase> op_cases();
// Of the sizes of GPT-2 124M (T = 1024) and of the nano presets (8 x 256 tokens).
std::vector<OpCase> bench_cases();

// The values are a function of the case's name and the input's index; every type holds the same numbers, rounded. Real
// inputs of a differentiable case want a gradient.
std::vector<Var> make_inputs(const OpCase& c, DType dtype, Device& device);

}  // namespace grt
