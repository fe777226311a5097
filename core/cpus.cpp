// How many CPUs this process may use: its affinity mask, cut down by the cgroup quotas above it.
// Formats: proc(5) for /proc/self/{cgroup,mountinfo}; the kernel's cgroup-v2.rst (cpu.max) and sched-bwc.rst
// (cpu.cfs_quota_us) for the quotas.
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

#include "core/threads.h"

namespace grt {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// A cgroup hierarchy that can hold a CPU quota, as it is mounted here.
struct Hierarchy {
  bool version2 = false;
  std::string root;   // the cgroup that is visible as `mount`
  std::string mount;  // directory
};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // id parent major:minor ROOT MOUNT options [optional...] - TYPE source SUPER_OPTIONS
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::string skip, cgroup, mount, type, super;
    std::istringstream(line.substr(0, dash)) >> skip >> skip >> skip >> cgroup >> mount;
    std::istringstream(line.substr(dash + 3)) >> type >> skip >> super;
    if (type == "cgroup2" || (type == "cgroup" && has_word(super, "cpu"))) {
      found.push_back({type == "cgroup2", cgroup, root + mount});
    }
  }
  return found;
}

// The path of this process in the version 2 hierarchy, or in that of version 1's cpu controller.
std::string cgroup_path(const std::string& root, bool version2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // id:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? line.starts_with("0::") : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return "/";
}

double quota_in(const std::string& directory, bool version2) {
  std::string quota;
  double period = 0;
  if (version2) {
    std::ifstream(directory + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "/cpu.cfs_period_us") >> period;
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
  for (const Hierarchy& h : hierarchies(root)) {
    std::string path = cgroup_path(root, h.version2);
    // In a container the mount may show a part of the hierarchy only, from h.root on.
    if (h.root != "/") path = path.starts_with(h.root) ? path.substr(h.root.size()) : "";
    while (true) {
      least = std::min(least, quota_in(h.mount + path, h.version2));
      const std::size_t slash = path.rfind('/');
      if (slash == path.npos) break;
      path.resize(slash);
    }
  }
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
