// How many CPUs this process may use, and which.
#pragma once

#include <cstdint>
#include <string>

namespace grt {

// CPUs this process may use: the smaller of its affinity mask and its cgroup quota (rounded up), at least 1.
int allowed_cpus();

// The same for processes of one machine with the same affinity mask, and different otherwise but by chance.
std::int64_t cpu_set_id();

namespace detail {
// The smallest cgroup CPU quota (versions 1 and 2) that binds this process, in CPUs; infinity without one.
// `root` as for cgroups() (core/cgroup.h).
double cgroup_cpus(const std::string& root);
}  // namespace detail

}  // namespace grt
