// How much memory there is and how much this process has used.
#pragma once

#include <cstdint>
#include <string>

namespace grt {

// Bytes this process can still take: the least of the machine's available memory, what the cgroup limits above it
// leave, and its address-space limit.
std::int64_t available_memory();
std::int64_t peak_resident_memory();  // bytes: the largest resident set so far

namespace detail {
// What the limits of the cgroups (versions 1 and 2) above this process leave it, in bytes: pages of files that they
// could give up count as free. The largest number without a limit. `root` as for cgroups() (core/cgroup.h).
std::int64_t cgroup_memory(const std::string& root);
}  // namespace detail

}  // namespace grt
