// Files of a made-up tree of /proc and cgroups.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace grt::test {

inline void put(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace grt::test
