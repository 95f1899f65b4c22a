// Quantised checkpoints of other tools, none of which is read: each is refused by the name of its method.
#pragma once

#include <filesystem>
#include <optional>

#include "motley/base/binding.hpp"
#include "motley/base/dtype.hpp"

namespace motley {

// Throws an input error where a config.json says that its weights are quantised, in whatever words, but for the method
// that the model's family may have.
void refuse_quantised(const Reader& config, std::optional<DType> read);
// Whether it says that experts are, by that method.
bool has_quantised_experts(const Value& config, std::optional<DType> read);
// The same where a tool has put that into a file of its own in the folder of config.json.
void refuse_quantised_folder(const std::filesystem::path& folder);

}  // namespace motley
