// For tests of what else a program says on stderr: with --device auto it may say why it takes the CPU.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace grt::test {

// The arguments with --device cpu, unless they name a device.
inline std::vector<std::string> on_cpu(std::vector<std::string> arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--device") == arguments.end())
    arguments.insert(arguments.end(), {"--device", "cpu"});
  return arguments;
}

}  // namespace grt::test
