// What an agent was given when it joined, kept in its state folder: an agent that is started again rejoins by it, also
// when the token that it was admitted with does not count any more.
#pragma once

#include <filesystem>
#include <optional>

#include "motley/comm/membership/enrolment.hpp"

namespace motley {

// None where the file does not hold one whose certificate is still valid.
std::optional<Enrolment> read_kept_identity(const std::filesystem::path& file);

// Its owner alone can read the file. Throws an environment error.
void keep_identity(const std::filesystem::path& file, const Enrolment& enrolment);

}  // namespace motley
