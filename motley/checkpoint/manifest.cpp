#include "motley/checkpoint/manifest.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/digest.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

std::string hexadecimal(const ChunkDigest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

constexpr const char* not_a_manifest = "run the same version of motley on all machines";

std::uint64_t count_chunks(std::uint64_t bytes) { return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0); }

bool can_be_a_name(const std::string& name) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' '; };  // digest() writes lines
  return !name.empty() && name.find('/') == std::string::npos && !name.starts_with('.') &&
         std::ranges::none_of(name, is_control);
}

// What tells versions of a file apart without reading it.
std::string stamp_of(const fs::path& file) {
  struct stat facts {};
  if (::stat(file.c_str(), &facts) != 0) return {};
  return fmt::format("motley.digests/1 {} {} {} {}.{:09}", fs::absolute(file).string(), facts.st_ino, facts.st_size,
                     facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
}

// A file of digests is its stamp, a line, and the digests.
class DigestCache {
 public:
  explicit DigestCache(fs::path folder) : folder_(std::move(folder)) {}

  // Of the version of the file that has this stamp.
  std::vector<ChunkDigest> read(const fs::path& file, const std::string& stamp, std::size_t chunks) const {
    if (folder_.empty()) return {};
    std::ifstream in(place(file), std::ios::binary);
    std::string found;
    std::vector<ChunkDigest> digests(chunks);
    if (!std::getline(in, found) || found.empty() || found != stamp) return {};
    in.read(reinterpret_cast<char*>(digests.data()), static_cast<std::streamsize>(chunks * sizeof(ChunkDigest)));
    return in && in.peek() == std::ifstream::traits_type::eof() ? digests : std::vector<ChunkDigest>{};
  }

  // As far as it can: what is not kept is found again.
  void write(const fs::path& file, const std::string& stamp, const std::vector<ChunkDigest>& digests) const {
    if (folder_.empty()) return;
    std::error_code ignored;
    fs::create_directories(folder_, ignored);
    std::string content = stamp + '\n';
    content.append(reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(ChunkDigest));
    try {
      replace_file(place(file), content);
    } catch (const Error&) {
      // Not kept, then.
    }
  }

 private:
  fs::path place(const fs::path& file) const {
    const std::string path = fs::absolute(file).string();
    return folder_ / hexadecimal(sha256_of(std::as_bytes(std::span(path))));
  }
  fs::path folder_;
};

}  // namespace

std::string ModelManifest::digest() const {
  std::string text = fmt::format("{}\n", opens);
  for (const ManifestFile& file : files) {
    text += fmt::format("{}\n{} {}\n", file.name, file.bytes, file.header_bytes);
    for (const ChunkDigest& digest : file.digests) text += hexadecimal(digest);
  }
  return hexadecimal(sha256_of(std::as_bytes(std::span(text))));
}

void check_manifest(const ModelManifest& manifest) {
  std::set<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    if (!can_be_a_name(file.name))
      throw input_error(fmt::format("a model's file cannot be called \"{}\"", file.name), not_a_manifest);
    if (!names.insert(file.name).second)
      throw input_error(fmt::format("the file {} is listed twice", file.name), not_a_manifest);
    if (file.digests.size() != count_chunks(file.bytes) || file.header_bytes > file.bytes)
      throw input_error(fmt::format("the file {} of {} bytes has {} digests and a header of {} bytes", file.name,
                                    file.bytes, file.digests.size(), file.header_bytes),
                        not_a_manifest);
  }
  if (!manifest.opens.empty() && !names.contains(manifest.opens))
    throw input_error(fmt::format("the file {} is not among those of the model", manifest.opens), not_a_manifest);
}

bool has_chunk(const ModelManifest& manifest, const ChunkId& id) {
  return id.file < manifest.files.size() && id.chunk < manifest.files[id.file].digests.size();
}

bool has_chunks(const ModelManifest& manifest, const ChunkRange& range) {
  return range.first < range.end && has_chunk(manifest, {range.file, range.end - 1});
}

std::vector<ChunkRange> whole_model(const ModelManifest& manifest) {
  std::vector<ChunkRange> ranges;
  for (std::uint32_t file = 0; file < manifest.files.size(); ++file)
    if (const auto chunks = static_cast<std::uint32_t>(manifest.files[file].digests.size()); chunks > 0)
      ranges.push_back({file, 0, chunks});
  return ranges;
}

std::uint64_t chunk_size(const ManifestFile& file, std::uint32_t chunk) {
  return std::min(chunk_bytes, file.bytes - chunk * chunk_bytes);
}

ManifestOf contents_of(const ModelManifest& manifest) {
  const auto has_states = [](const ManifestFile& file) { return file.name.starts_with(states_stem); };
  return std::ranges::any_of(manifest.files, has_states) ? ManifestOf::weights_and_states : ManifestOf::weights;
}

ModelManifest make_manifest(const fs::path& model, const fs::path& digests, const std::function<void(double)>& progress,
                            ManifestOf of) {
  const DigestCache cache(digests);
  std::vector<Checkpoint::File> files = Checkpoint(model).files();
  if (of == ManifestOf::weights_and_states)
    std::ranges::move(Checkpoint(model, states_stem).files(), std::back_inserter(files));
  ModelManifest manifest;
  if (is_gguf(model)) manifest.opens = model.filename().string();
  std::uint64_t total = 0, done = 0;
  for (const Checkpoint::File& file : files) total += fs::file_size(file.path);
  const auto advance = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total, 1)));
  };
  for (const Checkpoint::File& file : files) {
    const std::string stamp = stamp_of(file.path);  // first: what changes while it is read is read again the next time
    const MappedFile mapped(file.path);
    const std::span<const std::byte> bytes = mapped.bytes();
    ManifestFile& entry = manifest.files.emplace_back();
    entry.name = file.path.filename().string();
    entry.bytes = bytes.size();
    entry.header_bytes = file.header_bytes;
    const std::size_t chunks = count_chunks(bytes.size());
    entry.digests = cache.read(file.path, stamp, chunks);
    if (entry.digests.size() == chunks) {
      advance(bytes.size());
      continue;
    }
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const std::size_t first = chunk * chunk_bytes, size = std::min<std::size_t>(chunk_bytes, bytes.size() - first);
      entry.digests.push_back(sha256_of(bytes.subspan(first, size)));
      advance(size);
    }
    cache.write(file.path, stamp, entry.digests);
  }
  return manifest;
}

}  // namespace motley
