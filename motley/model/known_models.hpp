// The models of data/models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/base/dtype.hpp"

namespace motley {

// The largest whose weights of this type fit, with what plans reserve and the keys and values of a few prompts.
// Throws as data_folder().
std::optional<std::string> largest_known_model(std::int64_t free_bytes, DType type);

}  // namespace motley
