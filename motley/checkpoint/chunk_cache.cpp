#include "motley/checkpoint/chunk_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/parallel.hpp"
#include "motley/checkpoint/digest.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr int check_threads = 4;

// Every process that has the cache open holds a shared lock on this file, and an exclusive one while it is the first or
// the last. Its byte says whether the last one ended in order: the marks of chunks are believed only then.
fs::path use_file(const fs::path& folder) { return folder / ".use"; }
constexpr char in_order = 'o', under_way = 'u';

// A byte for each chunk of the file: 1 where it is there. No file of a model is called so.
fs::path chunks_file(const fs::path& folder, const std::string& name) { return folder / ("." + name + ".chunks"); }

// False: another process holds it. A file system without locks has caches for one process.
bool take_lock(int descriptor, int how) {
  while (::flock(descriptor, how) != 0)
    if (errno != EINTR) return errno != EWOULDBLOCK;
  return true;
}

int open_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) throw environment_error(fmt::format("cannot write {}", path.string()));
  return descriptor;
}

void set_size(int descriptor, std::uint64_t bytes, const fs::path& path) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) == 0 && static_cast<std::uint64_t>(facts.st_size) == bytes) return;
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0)
    throw environment_error(fmt::format("cannot make {} {} bytes long", path.string(), bytes));
}

void write_at(int descriptor, std::span<const std::byte> bytes, std::uint64_t offset, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw environment_error(fmt::format("cannot write {} to the cache of weights", name));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void sync_data(int descriptor, const std::string& name) {
  if (::fdatasync(descriptor) != 0)
    throw environment_error(fmt::format("cannot write {} to the cache of weights", name));
}

// Unless a process has it open. Under another name first: one that opens it meanwhile makes a new one.
bool remove_unused(const fs::path& folder) {
  const int use = ::open(use_file(folder).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const bool unused = use >= 0 && take_lock(use, LOCK_EX | LOCK_NB);
  std::error_code failed;
  if (unused) {
    const fs::path removed = folder.parent_path() / ".removed";
    fs::remove_all(removed, failed);
    fs::rename(folder, removed, failed);
    fs::remove_all(failed ? folder : removed, failed);
  }
  if (use >= 0) ::close(use);
  return unused;
}

std::uint64_t bytes_on_disk(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    struct stat facts {};
    if (::stat(entry.path().c_str(), &facts) == 0) bytes += static_cast<std::uint64_t>(facts.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace

ChunkCache::ChunkCache(const fs::path& root, ModelManifest manifest, const std::function<void()>& alive)
    : manifest_(std::move(manifest)), folder_(root / manifest_.digest()) {
  check_manifest(manifest_);
  try {
    const bool first = open_use();
    std::error_code ignored;
    fs::last_write_time(folder_, fs::file_time_type::clock::now(), ignored);  // used now: trim_chunk_caches()
    open_files();
    char ended = under_way;
    if (first && (::pread(use_, &ended, 1, 0) != 1 || ended != in_order)) check_chunks(alive);
    write_at(use_, std::as_bytes(std::span(&under_way, 1)), 0, ".use");
    sync_data(use_, ".use");
    take_lock(use_, LOCK_SH);
  } catch (...) {
    close_all();
    throw;
  }
}

ChunkCache::~ChunkCache() {
  // put() has synced all that the marks stand for.
  if (take_lock(use_, LOCK_EX | LOCK_NB) && ::pwrite(use_, &in_order, 1, 0) == 1) ::fdatasync(use_);
  close_all();
}

void ChunkCache::close_all() {
  for (const File& file : files_) {
    if (file.data >= 0) ::close(file.data);
    if (file.chunks >= 0) ::close(file.chunks);
  }
  if (use_ >= 0) ::close(use_);
}

// Returns whether no other process has the cache open; then none opens it either until the lock is shared.
bool ChunkCache::open_use() {
  for (;;) {
    std::error_code failed;
    fs::create_directories(folder_, failed);
    if (failed)
      throw Error(ErrorCode::environment, fmt::format("cannot make {}: {}", folder_.string(), failed.message()),
                  "name another folder in XDG_CACHE_HOME");
    use_ = open_file(use_file(folder_));
    const bool first = take_lock(use_, LOCK_EX | LOCK_NB);
    if (!first) take_lock(use_, LOCK_SH);
    struct stat facts {};
    if (::fstat(use_, &facts) == 0 && facts.st_nlink > 0) return first;
    ::close(std::exchange(use_, -1));  // trim_chunk_caches() has removed it meanwhile
  }
}

void ChunkCache::open_files() {
  for (const ManifestFile& entry : manifest_.files) {
    File& file = files_.emplace_back();
    const fs::path path = folder_ / entry.name;
    file.data = open_file(path);
    set_size(file.data, entry.bytes, path);
    const fs::path chunks = chunks_file(folder_, entry.name);
    file.chunks = open_file(chunks);
    set_size(file.chunks, entry.digests.size(), chunks);
    file.present.resize(entry.digests.size());
    if (::pread(file.chunks, file.present.data(), file.present.size(), 0) != std::ssize(file.present))
      throw environment_error(fmt::format("cannot read {}", chunks.string()));
  }
}

void ChunkCache::check_chunks(const std::function<void()>& alive) {
  std::vector<ChunkId> marked;
  for (const ChunkRange& range : held())
    for (std::uint32_t chunk = range.first; chunk < range.end; ++chunk) marked.push_back({range.file, chunk});
  std::vector<char> good(marked.size());
  for (std::size_t done = 0; done < marked.size(); done += check_threads) {
    if (alive) alive();
    in_parallel(std::min<std::size_t>(check_threads, marked.size() - done), check_threads, [&](std::size_t i) {
      const auto& [file, chunk] = marked[done + i];
      try {
        good[done + i] =
            sha256_of(read_chunk(folder_, manifest_.files[file], chunk)) == manifest_.files[file].digests[chunk];
      } catch (const Error&) {
        // A part of the disk that cannot be read.
      }
    });
  }
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (good[i] != 0) continue;
    const auto& [file, chunk] = marked[i];
    const std::byte gone{0};
    write_at(files_[file].chunks, {&gone, 1}, chunk, manifest_.files[file].name);
    files_[file].present[chunk] = 0;
    ++damaged_;
  }
}

fs::path ChunkCache::model() const { return manifest_.opens.empty() ? folder_ : folder_ / manifest_.opens; }

std::vector<ChunkId> ChunkCache::missing(const std::vector<ChunkId>& wanted) const {
  const std::lock_guard lock(mutex_);
  std::vector<ChunkId> lacking;
  for (const ChunkId& id : wanted)
    if (files_.at(id.file).present.at(id.chunk) != 1) lacking.push_back(id);
  return lacking;
}

std::vector<ChunkRange> ChunkCache::held() const {
  const std::lock_guard lock(mutex_);
  std::vector<ChunkRange> ranges;
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    const std::vector<char>& present = files_[file].present;
    for (std::uint32_t chunk = 0; chunk < present.size(); ++chunk) {
      if (present[chunk] != 1) continue;
      if (!ranges.empty() && ranges.back().file == file && ranges.back().end == chunk)
        ++ranges.back().end;
      else
        ranges.push_back({file, chunk, chunk + 1});
    }
  }
  return ranges;
}

std::vector<std::byte> ChunkCache::get(const ChunkId& id) const {
  if (!missing({id}).empty()) return {};
  return read_chunk(folder_, manifest_.files[id.file], id.chunk);
}

void ChunkCache::put(const ChunkId& id, std::span<const std::byte> bytes) {
  const ManifestFile& entry = manifest_.files.at(id.file);
  if (bytes.size() != chunk_size(entry, id.chunk) || sha256_of(bytes) != entry.digests.at(id.chunk))
    throw Error(ErrorCode::peer, fmt::format("chunk {} of {} came damaged", id.chunk, entry.name));
  File& file = files_.at(id.file);
  write_at(file.data, bytes, id.chunk * chunk_bytes, entry.name);
  sync_data(file.data, entry.name);
  const std::lock_guard lock(mutex_);
  const auto there = std::byte{1};
  write_at(file.chunks, {&there, 1}, id.chunk, entry.name);
  file.present.at(id.chunk) = 1;
}

std::vector<std::byte> read_chunk(const fs::path& folder, const ManifestFile& file, std::uint32_t chunk) {
  const fs::path path = folder / file.name;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<std::byte> bytes(chunk_size(file, chunk));
  std::size_t read = 0;
  while (descriptor >= 0 && read < bytes.size()) {
    const ssize_t more =
        ::pread(descriptor, bytes.data() + read, bytes.size() - read, static_cast<off_t>(chunk * chunk_bytes + read));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) break;
    read += static_cast<std::size_t>(more);
  }
  if (descriptor >= 0) ::close(descriptor);
  if (read < bytes.size())
    throw input_error(fmt::format("{} cannot be read any more", path.string()), "put the model's files back");
  return bytes;
}

void trim_chunk_caches(const fs::path& root, std::uint64_t most_bytes, const std::string& keep) {
  struct Model {
    fs::file_time_type used;
    fs::path folder;
    std::uint64_t bytes;
  };
  std::vector<Model> models;
  std::uint64_t total = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const std::uint64_t bytes = bytes_on_disk(entry.path());
    total += bytes;
    if (entry.path().filename() != keep) models.push_back({entry.last_write_time(ignored), entry.path(), bytes});
  }
  std::ranges::sort(models, {}, &Model::used);
  for (const Model& model : models) {
    if (total <= most_bytes) return;
    if (remove_unused(model.folder)) total -= model.bytes;
  }
}

}  // namespace motley
