// Quantised checkpoints of other tools, none of which is read: each is refused by the name of its method.
#pragma once

#include <filesystem>

#include "motley/base/binding.hpp"

namespace motley {

// Throws an input error where a config.json says that its weights are quantised, in whatever words.
void refuse_quantised(const Reader& config);
// The same where a tool has put that into a file of its own in the folder of config.json.
void refuse_quantised_folder(const std::filesystem::path& folder);

}  // namespace motley
