// What the system refuses, with its own words.
#pragma once

#include <string>
#include <string_view>

#include "motley/base/error.hpp"

namespace motley {

// Right after the call that failed: "cannot make a socket: Too many open files". Without a hint, that of the cause:
// "raise the limit of open files with ulimit -n".
Error environment_error(std::string_view doing, std::string hint = {});

}  // namespace motley
