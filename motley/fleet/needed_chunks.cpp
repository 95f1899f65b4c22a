#include "motley/fleet/needed_chunks.hpp"

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

std::vector<ChunkId> chunks_of(const std::vector<ReadRows>& read, const ModelManifest& manifest) {
  Chunks chunks(manifest);
  for (const ReadRows& part : read) {
    const Checkpoint::Found found = part.from.find(part.tensor);
    const std::uint64_t rows =
        static_cast<std::uint64_t>(found.tensor.shape.empty() ? 1 : std::max<std::int64_t>(found.tensor.shape[0], 1));
    const std::uint64_t row_bytes = found.tensor.bytes.size() / rows;
    chunks.add(found.file.filename().string(),
               found.tensor.offset + static_cast<std::uint64_t>(part.rows.first) * row_bytes,
               static_cast<std::uint64_t>(part.rows.size()) * row_bytes);
  }
  return chunks.all();
}

std::vector<ChunkId> needed_chunks(const ServePlan& plan, const std::string& device, const Checkpoint& checkpoint,
                                   const ModelManifest& manifest, ChunksOf of) {
  const auto stage = std::ranges::find_if(
      plan.stages, [&](const Stage& one) { return std::ranges::find(one.devices, device) != one.devices.end(); });
  if (stage == plan.stages.end())
    throw input_error(fmt::format("{} is in no stage of the plan", device), "name a device that the plan uses");
  const auto rank = static_cast<std::size_t>(std::ranges::find(stage->devices, device) - stage->devices.begin());
  const Architecture& arch = plan.model.arch;
  const Shard shard =
      make_shards(arch, static_cast<int>(stage->devices.size()), stage->shares, stage->weight_type).at(rank);
  std::vector<ReadRows> read;
  const auto add_all = [&](const std::vector<TensorSpec>& tensors) {
    for (const TensorSpec& tensor : tensors)
      read.push_back({checkpoint, tensor.name, slice_of(arch, tensor, shard).rows});
  };
  const auto add = [&](const LayerRange& layers, bool embedding, bool head) {
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) add_all(block_tensors(arch, layer));
    if (embedding) add_all(embedding_tensors(arch));
    if (head) add_all(head_tensors(arch));
  };
  add(stage->layers, stage->embedding, stage->head);
  if (of == ChunksOf::standby_too)
    for (const StandbyWeights& standby : stage->standby_weights)
      add(standby.layers, standby.layers.first == 0, standby.layers.end == arch.layers);
  return chunks_of(read, manifest);
}

}  // namespace motley
