// Weights that came from elsewhere, on this machine's disk: files of the model with holes where nothing has come yet,
// so that a worker opens them as if they were whole. Which chunks are there is written beside each file, once the disk
// has them. Processes may share a cache.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "motley/checkpoint/manifest.hpp"

namespace motley {

class ChunkCache {
 public:
  // In a folder of `root` that the manifest's digest names; what an earlier process left there is used. Unless that one
  // ended in order, all chunks are read and held against their digests first, and `alive` is called now and then.
  // Throws an input error for what is not a manifest, an environment error where the folder cannot be written.
  ChunkCache(const std::filesystem::path& root, ModelManifest manifest, const std::function<void()>& alive = {});
  ~ChunkCache();
  ChunkCache(const ChunkCache&) = delete;
  ChunkCache& operator=(const ChunkCache&) = delete;

  const ModelManifest& manifest() const { return manifest_; }
  // Chunks that should have been here and were not what they should be: they are missing.
  std::size_t damaged() const { return damaged_; }
  // What a worker opens: the folder, or a GGUF file.
  std::filesystem::path model() const;

  // Those of `wanted` that are not here.
  std::vector<ChunkId> missing(const std::vector<ChunkId>& wanted) const;
  // Those that are here, in order.
  std::vector<ChunkRange> held() const;
  // The bytes of a chunk; empty: it is not here. Throws an input error where it cannot be read.
  std::vector<std::byte> get(const ChunkId& id) const;
  // Returns when the disk has the bytes. Throws a peer error where they are not the chunk's, an environment error where
  // they cannot be written: then nothing has changed.
  void put(const ChunkId& id, std::span<const std::byte> bytes);

 private:
  struct File {
    int data = -1, chunks = -1;  // descriptors
    std::vector<char> present;
  };

  bool open_use();
  void open_files();
  void check_chunks(const std::function<void()>& alive);
  void close_all();

  const ModelManifest manifest_;
  const std::filesystem::path folder_;
  int use_ = -1;  // a descriptor: use_file() in chunk_cache.cpp
  std::size_t damaged_ = 0;
  mutable std::mutex mutex_;
  std::vector<File> files_;
};

// A whole file that is already here: the bytes of a chunk. Throws an input error where it cannot be read.
std::vector<std::byte> read_chunk(const std::filesystem::path& folder, const ManifestFile& file, std::uint32_t chunk);

// Removes the weights of models that were used least recently, until what is left takes at most `most_bytes` on disk;
// never those of `keep`, a manifest's digest, nor those that a process has open.
void trim_chunk_caches(const std::filesystem::path& root, std::uint64_t most_bytes, const std::string& keep);

}  // namespace motley
