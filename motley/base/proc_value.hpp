// What the kernel tells in files of lines "key : value", such as /proc/cpuinfo.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace motley {

// The value of the first line that begins with the key; none: there is no such line.
std::optional<std::string> proc_value(const std::string& file, std::string_view key);

}  // namespace motley
