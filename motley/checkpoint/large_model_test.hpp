// Models of more than one chunk, of zeros that take no room on disk.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "motley/checkpoint/manifest.hpp"
#include "motley/checkpoint/safetensors_test.hpp"

namespace motley {

class LargeModelTest : public SafetensorsTest {
 protected:
  static constexpr std::uint64_t header_bytes = 256;  // of the file that write_large() writes
  static constexpr std::uint64_t large_bytes = 2 * chunk_bytes + chunk_bytes / 2;

  // One tensor, "zeros", that fills two chunks and a half with the header.
  std::filesystem::path write_large() {
    const std::uint64_t bytes = large_bytes - header_bytes;
    std::string header =
        fmt::format(R"({{"zeros": {{"dtype": "U8", "shape": [{}], "data_offsets": [0, {}]}}}})", bytes, bytes);
    header.resize(header_bytes - 8, ' ');
    const auto path = write(file_of(header, ""));
    std::filesystem::resize_file(path, large_bytes);
    return path;
  }

  static void change_byte(const std::filesystem::path& path, std::uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const char before = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(before ^ 1));
  }

  static std::vector<ChunkId> all_chunks(const ModelManifest& manifest) {
    std::vector<ChunkId> ids;
    for (std::uint32_t file = 0; file < manifest.files.size(); ++file)
      for (std::uint32_t chunk = 0; chunk < manifest.files[file].digests.size(); ++chunk) ids.push_back({file, chunk});
    return ids;
  }
};

}  // namespace motley
