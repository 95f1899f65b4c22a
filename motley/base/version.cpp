#include "motley/base/version.hpp"

namespace motley {

std::string_view version() { return MOTLEY_VERSION; }

std::string program_version() { return "motley " MOTLEY_VERSION; }

}  // namespace motley
