// What an agent was given when it joined, kept in its state folder: an agent that is started again rejoins by it, also
// when the token that it was admitted with does not count any more.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "motley/comm/membership/enrolment.hpp"

namespace motley {

// None where the file does not hold one whose certificate is still valid.
std::optional<Enrolment> read_saved_identity(const std::filesystem::path& file);

// Its owner alone can read the file. Throws an environment error.
void save_identity(const std::filesystem::path& file, const Enrolment& enrolment);

// This machine's private key (PEM) for one deployment, made and kept when it is first asked for: a certificate that was
// given to it, and did not arrive, is given to it again. Where the file cannot be written it is new each time.
std::string saved_key(const std::filesystem::path& file, const std::string& member);

}  // namespace motley
