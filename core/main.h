// What every binary does around its work: run it, and turn an Error into one line on stderr and exit code 1.
#pragma once

#include <functional>

#include "core/comm.h"

namespace grt {

// Returns body()'s exit code; 1 after an Error, whose text (newlines made spaces) is printed as "program: text".
// Also turns std::bad_alloc and any other exception into such a line.
int run_main(const char* program, const std::function<int()>& body) noexcept;

// The same on each of the ranks that a launcher started (core/comm.h), of which rank 0 alone has a stdout. An error on
// one rank, whose line names the rank, ends all of them.
int run_ranks(const char* program, const std::function<int(Comm&)>& body) noexcept;

}  // namespace grt
