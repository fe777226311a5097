// Parts of the library that need more than every machine has are libraries of their own, opened when they are wanted:
// a program starts without them, and pays nothing for them.
#pragma once

#include <string>

namespace grt {

// The function `name` of libgrt_PART.so, which is looked for in ../lib/grt beside the running program and then where
// the system looks for libraries. It stays loaded. Throws Error with the system's reason; `cure` ends the message.
void* plugin_function(const std::string& part, const char* name, const std::string& cure);

}  // namespace grt
