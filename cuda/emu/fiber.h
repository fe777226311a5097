// Stacks to switch between: a CUDA thread that waits keeps its own. x86-64 alone; every switch is announced to
// AddressSanitizer.
#pragma once

#include <cstddef>

namespace grt::emu {

struct Fiber {
  void* stack_pointer = nullptr;
  char* base = nullptr;  // usable stack [base, base + size); null for the stack of the operating system
  std::size_t size = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

// The first switch to the fiber calls entry(fiber), which never returns.
void create_fiber(Fiber* fiber, std::size_t stack_bytes, void (*entry)(Fiber*));
void switch_fiber(Fiber* from, Fiber* to);
void fiber_entered();  // the first thing an entry function calls

}  // namespace grt::emu
