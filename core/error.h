// Failing well: one exception type and one check function, no macros.
#pragma once

#include <fmt/format.h>

#include <stdexcept>

namespace grt {

// Everything that can go wrong in this project is thrown as an Error whose text is one line that names the file, flag
// or tensor, what was expected and what came. main() catches it (core/main.h); before that only who can say more of it,
// or do without what failed.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
  throw Error(fmt::format(message, std::forward<Args>(args)...));
}

// Throws Error with the formatted message unless `ok`. Nothing is formatted when it is.
template <class... Args>
void check(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail(message, std::forward<Args>(args)...);
}

}  // namespace grt
