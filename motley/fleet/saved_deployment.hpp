// What a driver needs to take its deployment up again after it was killed: who may come in, and where it listened.
// Agents go on looking for it, and know it by its certificate.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/authority/group_admission.hpp"

namespace motley {

struct SavedDeployment {
  std::string authority;    // Authority::save()
  std::string key;          // that its members show one another
  std::string coordinator;  // addresses
  std::string driver;
  AdmissionRecord admission;
  std::string relay = {};  // empty: there is none
};

// With all its secrets.
std::string to_text(const SavedDeployment& deployment);
// None where the text does not hold a deployment.
std::optional<SavedDeployment> saved_deployment_of(const std::string& text);

// None where there is no file, or it does not hold a deployment.
std::optional<SavedDeployment> read_saved_deployment(const std::filesystem::path& file);

// Its owner alone can read the file. Throws an environment error.
void save_deployment(const std::filesystem::path& file, const SavedDeployment& deployment);

}  // namespace motley
