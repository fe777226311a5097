#include "core/plugin.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

// The loader does not look whether a file holds all that it is to map: one that was copied in part would end the
// program when it is touched. What is no library at all the loader names itself.
void check_whole(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  const OpenFile file(path);
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return;
  file.read(0, &header, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(Elf64_Phdr)) return;
  std::uint64_t end = header.e_phoff + std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  for (int i = 0; i < header.e_phnum && end <= file.size(); ++i) {
    Elf64_Phdr part;
    file.read(header.e_phoff + i * sizeof part, &part, sizeof part);
    if (part.p_type == PT_LOAD) end = std::max(end, part.p_offset + part.p_filesz);
  }
  check(end <= file.size(), "{}: has {} bytes of at least {}: it was copied in part", path.string(), file.size(), end);
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
  check_whole(place);
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
