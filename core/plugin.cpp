#include "core/plugin.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/files.h"

namespace grt {

void* plugin_function(const std::string& part, const char* name, const std::string& cure) {
  const std::string file = "libgrt_" + part + ".so";
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path beside = program.parent_path().parent_path() / "lib" / "grt" / file;
  void* library = dlopen(fs::exists(beside, ignored) ? beside.c_str() : file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* reason = library ? nullptr : dlerror();
  check(library != nullptr, "{}: {}; {}", file, reason ? reason : "cannot be loaded", cure);
  void* function = dlsym(library, name);
  check(function != nullptr, "{}: has no function {}: it belongs to another version of this program", file, name);
  return function;
}

}  // namespace grt
