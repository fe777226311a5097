// Formats: proc(5) for /proc/self/mountinfo, cgroups(7) for /proc/self/cgroup.
#include "core/cgroup.h"

#include <cstddef>
#include <fstream>
#include <sstream>

namespace grt {
namespace {

// A hierarchy as it is mounted here.
struct Hierarchy {
  bool version2 = false;
  std::string root;   // the cgroup that is visible as `mount`
  std::string mount;  // directory
};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

std::vector<Hierarchy> hierarchies(const std::string& controller, const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // id parent major:minor ROOT MOUNT options [optional...] - TYPE source SUPER_OPTIONS
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::string skip, cgroup, mount, type, super;
    std::istringstream(line.substr(0, dash)) >> skip >> skip >> skip >> cgroup >> mount;
    std::istringstream(line.substr(dash + 3)) >> type >> skip >> super;
    if (type == "cgroup2" || (type == "cgroup" && has_word(super, controller)))
      found.push_back({type == "cgroup2", cgroup, root + mount});
  }
  return found;
}

// The path of this process in the version 2 hierarchy, or in that of version 1's controller.
std::string path_in(const Hierarchy& hierarchy, const std::string& controller, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // id:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (hierarchy.version2 ? line.starts_with("0::") : has_word(controllers, controller))
      return line.substr(second + 1);
  }
  return "/";
}

}  // namespace

std::vector<Cgroup> cgroups(const std::string& controller, const std::string& root) {
  std::vector<Cgroup> found;
  for (const Hierarchy& h : hierarchies(controller, root)) {
    std::string path = path_in(h, controller, root);
    // In a container the mount may show a part of the hierarchy only, from h.root on.
    if (h.root != "/") path = path.starts_with(h.root) ? path.substr(h.root.size()) : "";
    while (true) {
      found.push_back({h.mount + path, h.version2});
      const std::size_t slash = path.rfind('/');
      if (slash == path.npos) break;
      path.resize(slash);
    }
  }
  return found;
}

}  // namespace grt
