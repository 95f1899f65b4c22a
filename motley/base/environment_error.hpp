// What the system refuses, with its own words.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {

// Right after the call that failed: "cannot make a socket: Too many open files".
inline Error environment_error(std::string_view doing, std::string hint = {}) {
  const int cause = errno;
  return Error(ErrorCode::environment, std::string(doing) + ": " + std::strerror(cause), std::move(hint));
}

}  // namespace motley
