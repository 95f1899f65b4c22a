// Lengths of requests from a CSV file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace motley {

// The column `prompt_tokens` or `output_tokens`; where the file has a column `class`, the rows of this class. Throws an
// input error where there is none.
std::vector<std::int64_t> read_lengths(const std::filesystem::path& path, std::string_view column,
                                       const std::string& class_name);

}  // namespace motley
