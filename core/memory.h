// How much memory there is and how much this process has used.
#pragma once

#include <cstdint>

namespace grt {

// Bytes this process can still take: the least of the machine's available memory, what the cgroup limits above it
// leave, and its address-space limit.
std::int64_t available_memory();
std::int64_t peak_resident_memory();  // bytes: the largest resident set so far

}  // namespace grt
