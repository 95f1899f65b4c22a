// What the files of a model's weights hold, in chunks by their digests: two machines that have the same manifest have
// the same weights, and can give them to each other piece by piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/base/bounded.hpp"

namespace motley {

constexpr std::uint64_t chunk_bytes = std::uint64_t{8} << 20;

using ChunkDigest = std::array<std::byte, 32>;  // SHA-256

constexpr std::size_t max_manifest_files = 65536;
constexpr std::size_t max_file_chunks = std::size_t{1} << 20;  // 8 TiB

struct ManifestFile {
  std::string name;  // without folder
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;                     // that a process that opens the model reads
  BoundedList<ChunkDigest, max_file_chunks> digests;  // of each chunk_bytes; the last chunk may be shorter
  bool operator==(const ManifestFile&) const = default;
};

struct ModelManifest {
  std::string opens;  // the file to be opened; empty: their folder
  BoundedList<ManifestFile, max_manifest_files> files;
  // "3f…", 64 hexadecimal digits: of all that is above.
  std::string digest() const;
  bool operator==(const ModelManifest&) const = default;
};

// Throws an input error unless this can be a manifest: names without folders and each once, as many digests as chunks.
void check_manifest(const ModelManifest& manifest);

struct ChunkId {
  std::uint32_t file = 0, chunk = 0;
  auto operator<=>(const ChunkId&) const = default;
};
bool has_chunk(const ModelManifest& manifest, const ChunkId& id);

// [first, end) of a file's chunks.
struct ChunkRange {
  std::uint32_t file = 0, first = 0, end = 0;
  bool operator==(const ChunkRange&) const = default;
};
// It names chunks of the model, at least one.
bool has_chunks(const ModelManifest& manifest, const ChunkRange& range);
// Every chunk of every file.
std::vector<ChunkRange> whole_model(const ModelManifest& manifest);

std::uint64_t chunk_size(const ManifestFile& file, std::uint32_t chunk);

// The files that hold the optimizer's states in a checkpoint of training, which weights of a model do not have.
constexpr const char* states_stem = "optimizer";
enum class ManifestOf : std::uint8_t { weights, weights_and_states };
ManifestOf contents_of(const ModelManifest& manifest);

// Reads all of the weights in a folder or a GGUF file. `digests`: a folder for what was found, so that the next time
// files of the same size and time of change are not read again; empty: none. `progress` gets the fraction that is done.
// Throws an input error where the model cannot be read.
ModelManifest make_manifest(const std::filesystem::path& model, const std::filesystem::path& digests = {},
                            const std::function<void(double)>& progress = {}, ManifestOf of = ManifestOf::weights);

}  // namespace motley
