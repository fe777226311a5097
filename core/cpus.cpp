// The affinity mask, cut down by the cgroup quotas above this process.
// Formats: the kernel's cgroup-v2.rst (cpu.max) and sched-bwc.rst (cpu.cfs_quota_us).
#include "core/cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/cgroup.h"

namespace grt {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

double quota_in(const Cgroup& group) {
  std::string quota;
  double period = 0;
  if (group.version2) {
    std::ifstream(group.directory + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group.directory + "/cpu.cfs_period_us") >> period;
  }
  double value = 0;
  const bool number = static_cast<bool>(std::istringstream(quota) >> value);  // "max" and "" are none, -1 too
  return number && value > 0 && period > 0 ? value / period : kNoQuota;
}

std::vector<unsigned long> affinity_mask() {
  for (int bits = CPU_SETSIZE; bits <= (1 << 20); bits *= 2) {  // the kernel refuses masks shorter than its own
    std::vector<unsigned long> mask(static_cast<std::size_t>(bits) / (8 * sizeof(unsigned long)));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, mask.size() * sizeof(unsigned long), set) == 0) return mask;
  }
  return {1};
}

}  // namespace

double detail::cgroup_cpus(const std::string& root) {
  double least = kNoQuota;
  for (const Cgroup& group : cgroups("cpu", root)) least = std::min(least, quota_in(group));
  return least;
}

int allowed_cpus() {
  const double quota = std::ceil(detail::cgroup_cpus(""));
  int cpus = 0;
  for (const unsigned long word : affinity_mask()) cpus += std::popcount(word);
  return std::max(1, quota < cpus ? static_cast<int>(quota) : cpus);
}

std::int64_t cpu_set_id() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::uint64_t h = 14695981039346656037u;  // FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
  const auto add = [&](std::uint64_t value) { h = (h ^ value) * 1099511628211u; };
  for (const unsigned char c : std::string_view(host)) add(c);
  for (const unsigned long word : affinity_mask()) add(word);
  return static_cast<std::int64_t>(h);
}

}  // namespace grt
