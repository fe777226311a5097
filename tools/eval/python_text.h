// Python's string functions as far as the prompts of the evaluation tasks use them: those prompts are defined by what
// Python does to text, to the last space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace grt {

std::string_view left_stripped(std::string_view text);   // str.lstrip()
std::string_view right_stripped(std::string_view text);  // str.rstrip()
inline std::string_view stripped(std::string_view text) { return left_stripped(right_stripped(text)); }

// str.capitalize(): the first character in upper case, all others in lower case. ASCII letters only: the data that it
// serves has no other letter whose case would change.
std::string capitalized(std::string_view text);

// str.replace(from, to): left to right, without looking again at what was put in.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

std::int64_t code_points(std::string_view text);  // len()

}  // namespace grt
