// Digests of what the files of a model say of themselves: equal where configuration, names, types, shapes and places of
// all tensors are. The weights themselves are not read.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/checkpoint/gguf.hpp"

namespace motley {

// "sha256:" and 64 hexadecimal digits.
bool is_digest(const std::string& text);

// SHA-256.
std::array<std::byte, 32> sha256_of(std::span<const std::byte> bytes);

// Of the headers of all parts.
std::string digest_of(const std::vector<std::unique_ptr<GgufFile>>& parts);

// Of config.json and the headers of the safetensors files in its folder. Empty where these are not all there, or one is
// not whole: planning needs none of them.
std::string folder_digest(const std::filesystem::path& config_json);

}  // namespace motley
