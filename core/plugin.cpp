#include "core/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"

namespace grt {
namespace {

std::string place_of(const std::string& file) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path beside = program.parent_path().parent_path() / "lib" / "grt" / file;
  return fs::exists(beside, ignored) ? beside.string() : file;
}

}  // namespace

std::string named_plugin(const std::string& part) {
  std::string variable = "GRT_" + part + "_LIBRARY";
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  const char* const name = std::getenv(variable.c_str());
  return name ? name : "";
}

Plugin::Plugin(const std::string& part, const std::string& cure) : file_("libgrt_" + part + ".so") {
  const std::string named = named_plugin(part), place = named.empty() ? place_of(file_) : named;
  library_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const reason = library_ ? nullptr : dlerror();
  check(library_ != nullptr, "{}: {}{}{}", file_, reason ? reason : "cannot be loaded", cure.empty() ? "" : "; ", cure);
}

void* Plugin::symbol(const char* name) const {
  void* const found = dlsym(library_, name);
  check(found != nullptr, "{}: has no function {}: it belongs to another version of this program", file_, name);
  return found;
}

}  // namespace grt
