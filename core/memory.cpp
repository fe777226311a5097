// Formats: proc(5) for /proc/meminfo and /proc/self/statm; the kernel's cgroup-v2.rst (memory.max, memory.current,
// memory.stat) and cgroup-v1/memory.rst (memory.limit_in_bytes, memory.usage_in_bytes).
#include "core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "core/cgroup.h"

namespace grt {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> read_number(const std::string& file) {  // none in "max", and where there is no such file
  std::int64_t n = 0;
  return std::ifstream(file) >> n ? std::optional(n) : std::nullopt;
}

std::int64_t machine_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::int64_t kib = 0; file >> key;)
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
  return kUnlimited;
}

// Bytes of files that lie in memory as long as there is room.
std::int64_t cached_files(const Cgroup& group) {
  const std::string prefix = group.version2 ? "" : "total_";  // version 1 names those of the groups below apart
  std::ifstream file(group.directory + "/memory.stat");
  std::string key;
  std::int64_t sum = 0;
  for (std::int64_t bytes = 0; file >> key >> bytes;)
    if (key == prefix + "inactive_file" || key == prefix + "active_file") sum += bytes;
  return sum;
}

std::int64_t left_in(const Cgroup& group) {
  const std::string memory = group.directory + "/memory.";
  const auto limit = read_number(memory + (group.version2 ? "max" : "limit_in_bytes"));
  if (!limit) return kUnlimited;
  const std::int64_t used = read_number(memory + (group.version2 ? "current" : "usage_in_bytes")).value_or(0);
  return *limit - std::max<std::int64_t>(0, used - cached_files(group));
}

std::int64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;  // the whole address space comes first
  return static_cast<std::int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t detail::cgroup_memory(const std::string& root) {
  std::int64_t least = kUnlimited;
  for (const Cgroup& group : cgroups("memory", root)) least = std::min(least, left_in(group));
  return least;
}

std::int64_t available_memory() {
  return std::max<std::int64_t>(0, std::min({machine_available(), detail::cgroup_memory(""), address_space_left()}));
}

std::int64_t peak_resident_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace grt
