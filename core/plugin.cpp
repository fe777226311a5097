// ELF headers are read here for the one fault that dlopen() does not look for: a file that was copied in part.
#include "core/plugin.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

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

// "" or what is wrong. The loader does not look whether a file holds all that it is to map: one that was copied in part
// would end the program when it is touched. Whatever else may be wrong the loader says itself.
std::string torn(const std::string& place) {
  std::error_code ignored;
  if (place.find('/') == place.npos || !fs::is_regular_file(place, ignored)) return "";
  const std::uint64_t size = fs::file_size(place, ignored);
  std::ifstream file(place, std::ios::binary);
  const auto read = [&](std::uint64_t at, auto& to) {
    file.seekg(static_cast<std::streamoff>(at));
    return static_cast<bool>(file.read(reinterpret_cast<char*>(&to), sizeof to));
  };
  Elf64_Ehdr header;
  if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "";
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return "";
  std::uint64_t end = header.e_phoff + std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  Elf64_Phdr part;
  for (int i = 0; i < header.e_phnum && end <= size && read(header.e_phoff + i * sizeof part, part); ++i)
    if (part.p_type == PT_LOAD) end = std::max(end, part.p_offset + part.p_filesz);
  if (end <= size) return "";
  return fmt::format("{}: has {} bytes of at least {}: it was copied in part", place, size, end);
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
  std::string reason = torn(place);
  library_ = reason.empty() ? dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library_) return;
  if (const char* const said = reason.empty() ? dlerror() : nullptr) reason = said;
  fail("{}: {}{}{}", file_, reason.empty() ? "cannot be loaded" : reason, cure.empty() ? "" : "; ", cure);
}

void* Plugin::symbol(const char* name) const {
  void* const found = dlsym(library_, name);
  check(found != nullptr, "{}: has no function {}: it belongs to another version of this program", file_, name);
  return found;
}

}  // namespace grt
