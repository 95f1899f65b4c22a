#include "motley/fleet/needed_chunks.hpp"

#include "motley/model/families/families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "motley/base/error.hpp"

namespace motley {
namespace {

class Chunks {
 public:
  explicit Chunks(const ModelManifest& manifest) : manifest_(manifest) {
    for (const ManifestFile& file : manifest.files) add(file.name, 0, file.header_bytes);
  }
  void add(const std::string& name, std::uint64_t first, std::uint64_t bytes) {
    const auto file = std::ranges::find(manifest_.files, name, &ManifestFile::name);
    if (file == manifest_.files.end())
      throw input_error(fmt::format("the file {} has changed since it was read first", name), "start again");
    const auto index = static_cast<std::uint32_t>(file - manifest_.files.begin());
    for (std::uint64_t chunk = first / chunk_bytes; bytes > 0 && chunk <= (first + bytes - 1) / chunk_bytes; ++chunk)
      ids_.insert({index, static_cast<std::uint32_t>(chunk)});
  }
  std::vector<ChunkId> all() const { return {ids_.begin(), ids_.end()}; }

 private:
  const ModelManifest& manifest_;
  std::set<ChunkId> ids_;
};

}  // namespace

std::vector<ChunkId> NeededChunks::of(const std::vector<ReadRows>& read) {
  Chunks chunks(manifest_);
  for (const ReadRows& part : read) {
    const Checkpoint::Found found = files_of(part.stem).find(part.tensor);
    if (found.scales != nullptr)
      chunks.add(found.scales_file->filename().string(), found.scales->offset, found.scales->bytes.size());
    if (found.tensor.row_step > 0) {  // its rows lie between others
      chunks.add(found.file.filename().string(), found.tensor.offset, found.tensor.bytes.size());
      continue;
    }
    const std::uint64_t rows =
        static_cast<std::uint64_t>(found.tensor.shape.empty() ? 1 : std::max<std::int64_t>(found.tensor.shape[0], 1));
    const std::uint64_t row_bytes = found.tensor.bytes.size() / rows;
    chunks.add(found.file.filename().string(),
               found.tensor.offset + static_cast<std::uint64_t>(part.rows.first) * row_bytes,
               static_cast<std::uint64_t>(part.rows.size()) * row_bytes);
  }
  return chunks.all();
}

const Checkpoint& NeededChunks::files_of(const std::string& stem) {
  const auto opened = opened_.find(stem);
  if (opened != opened_.end()) return opened->second;
  return opened_.emplace(stem, stem.empty() ? Checkpoint(model_, tensor_naming) : Checkpoint(model_, stem))
      .first->second;
}

}  // namespace motley
