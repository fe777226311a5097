// What every binary does around its work: run it, and turn an Error into one line on stderr and exit code 1.
#pragma once

#include <functional>

namespace grt {

// Returns body()'s exit code; 1 after an Error, whose text (newlines made spaces) is printed as "program: text".
// Also turns std::bad_alloc and any other exception into such a line.
int run_main(const char* program, const std::function<int()>& body) noexcept;

}  // namespace grt
