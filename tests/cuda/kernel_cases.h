// Every kernel of the contract (ops/kernels.h) at small and odd sizes, as something that can be run on any device.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/cases.h"
#include "ops/kernels.h"

namespace grt::test {

struct KernelOutput {
  Shape shape;
  bool into = false;     // it is an Into: may be absent, or be added to
  bool adds = false;     // it is added to always
  bool integer = false;  // i32
};

struct KernelCase {
  std::string function, variant;
  std::vector<KernelOutput> outputs;
  std::vector<CaseInput> inputs;
  // Returns what the kernel returns as a number; 0 where it returns nothing.
  std::function<double(Kernels& k, std::span<const Into> out, std::span<const Tensor> in)> run;

  std::string name() const { return variant.empty() ? function : function + ": " + variant; }
};

std::vector<KernelCase> kernel_cases();

}  // namespace grt::test
