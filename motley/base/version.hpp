// Which motley this is.
#pragma once

#include <string>
#include <string_view>

namespace motley {

std::string_view version();     // "0.1.0"
std::string program_version();  // "motley 0.1.0": as --version prints it, and as files say who wrote them

}  // namespace motley
