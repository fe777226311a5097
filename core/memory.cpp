#include "core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace grt {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t read_number(const std::string& file) {  // "max", or nothing there, is no limit
  std::int64_t n = 0;
  return std::ifstream(file) >> n ? n : kUnlimited;
}

std::int64_t machine_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::int64_t kib = 0; file >> key;)
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
  return kUnlimited;
}

// The limits of this process's cgroup (version 2) and of those above it, less what they hold now.
std::int64_t cgroup_available() {
  std::ifstream file("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) path = line.substr(3);
  std::int64_t least = kUnlimited;
  for (;; path = path.substr(0, path.rfind('/'))) {
    const std::string directory = "/sys/fs/cgroup" + path;
    const std::int64_t limit = read_number(directory + "/memory.max");
    if (limit != kUnlimited) least = std::min(least, limit - read_number(directory + "/memory.current"));
    if (path.find('/') == path.npos) return least;
  }
}

std::int64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;  // the whole address space comes first
  return static_cast<std::int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t available_memory() {
  return std::max<std::int64_t>(0, std::min({machine_available(), cgroup_available(), address_space_left()}));
}

std::int64_t peak_resident_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace grt
