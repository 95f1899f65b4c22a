// Files in the safetensors format: 8 bytes little-endian length of a JSON header, the header (name ->
// dtype, shape, byte range), the tensors' bytes. Files are mapped, not read: only what is copied out is touched.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {

// Bytes of an element of this type, as the format spells it; none for a type that is not known here.
std::optional<std::uint64_t> safetensors_element_bytes(std::string_view type);

// One file. Everything its header says is checked before it is believed: the header's length, shape x element size =
// range, ranges inside the file, no two overlapping. Any lie is an input error that names file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // The text that names the tensors.
  std::span<const std::byte> header() const { return header_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> mapping_;
  std::span<const std::byte> header_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace motley
