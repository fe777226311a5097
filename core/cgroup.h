// The control groups, of versions 1 and 2, that bind this process: what a container or a batch system grants it.
#pragma once

#include <string>
#include <vector>

namespace grt {

struct Cgroup {
  std::string directory;  // of its files, which are those of one version
  bool version2 = false;
};

// The groups that this process is in and those above them, in every hierarchy that may limit what `controller` ("cpu",
// "memory") counts. `root` is where /proc and the mounts of cgroups are looked up: "" but in tests.
std::vector<Cgroup> cgroups(const std::string& controller, const std::string& root);

}  // namespace grt
