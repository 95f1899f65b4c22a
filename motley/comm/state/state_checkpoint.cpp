#include "motley/comm/state/state_checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "motley/base/error.hpp"
#include "motley/base/mapping_guard.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr const char* checkpoint_format = "motley.state/1";
constexpr const char* damaged = "the checkpoint is damaged: use another, or pull the state from a member";

[[noreturn]] void fail(const fs::path& path, std::string_view doing) {
  const int cause = errno;
  throw Error(ErrorCode::environment, fmt::format("{}: cannot {}: {}", path.string(), doing, std::strerror(cause)),
              cause == ENOSPC ? "free disk space; the previous checkpoint is intact" : "");
}

// An open file; closed at the end.
class OpenFile {
 public:
  OpenFile(fs::path path, int flags) : path_(std::move(path)), file_(open(path_.c_str(), flags | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail(path_, "open");
  }
  ~OpenFile() { close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }

  void write_synced(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const auto size = write(file_, bytes.data(), bytes.size());
      if (size < 0 && errno != EINTR) fail(path_, "write");
      if (size > 0) bytes = bytes.subspan(static_cast<std::size_t>(size));
    }
    sync();
  }
  void sync() const {
    if (fsync(file_) != 0) fail(path_, "sync");
  }

 private:
  fs::path path_;
  int file_;
};

class MappedFiles {
 public:
  MappedFiles() = default;
  ~MappedFiles() {
    guards_.clear();
    for (const auto& bytes : mapped_) munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  MappedFiles(const MappedFiles&) = delete;
  MappedFiles& operator=(const MappedFiles&) = delete;

  std::span<const std::byte> map(const fs::path& path, std::int64_t bytes) {
    const OpenFile file(path, O_RDONLY);
    struct stat status {};
    if (fstat(file.get(), &status) != 0) fail(path, "examine");
    if (status.st_size != bytes)
      throw input_error(fmt::format("{}: has {} bytes, and the manifest says {}", path.string(), status.st_size, bytes),
                        damaged);
    if (bytes == 0) return {};
    void* start = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (start == MAP_FAILED) fail(path, "map");
    mapped_.emplace_back(static_cast<const std::byte*>(start), static_cast<std::size_t>(bytes));
    guards_.emplace_back(mapped_.back(), path);
    return mapped_.back();
  }

 private:
  std::vector<std::span<const std::byte>> mapped_;
  std::vector<MappingGuard> guards_;
};

std::string file_name(std::size_t item) { return fmt::format("{:04}.bin", item); }

Value manifest_json(const StateManifest& manifest) {
  Value::Array items;
  for (std::size_t i = 0; i < manifest.items.size(); ++i) {
    const auto& item = manifest.items[i];
    Value::Array chunks;
    for (const auto& chunk : item.chunks) chunks.emplace_back(to_hex(chunk));
    items.push_back(Value::object(
        {{"name", item.name}, {"file", file_name(i)}, {"bytes", item.bytes}, {"sha256", std::move(chunks)}}));
  }
  return Value::object({{"format", checkpoint_format},
                        {"epoch", static_cast<std::int64_t>(manifest.revision.epoch)},
                        {"step", static_cast<std::int64_t>(manifest.revision.step)},
                        {"chunk_bytes", state_chunk_bytes},
                        {"items", std::move(items)}});
}

const Value& member(const Value& object, std::string_view key, bool (Value::*is)() const, const std::string& source) {
  const Value* found = object.find(key);
  if (found == nullptr || !(found->*is)())
    throw input_error(fmt::format("{}: \"{}\" is missing or of a wrong type", source, key),
                      "this is not a manifest of a checkpoint, or it is damaged");
  return *found;
}

std::int64_t count(const Value& object, std::string_view key, const std::string& source) {
  const auto value = member(object, key, &Value::is_integer, source).as_integer();
  if (value < 0) throw input_error(fmt::format("{}: \"{}\" is negative", source, key), damaged);
  return value;
}

StateManifest read_manifest(const fs::path& path) {
  const std::string source = path.string();
  const Value document = read_document(path);
  if (member(document, "format", &Value::is_string, source).as_string() != checkpoint_format ||
      count(document, "chunk_bytes", source) != state_chunk_bytes)
    throw input_error(
        fmt::format("{}: not a manifest of format {}", source, checkpoint_format),
        fmt::format("its `format` must be that, and its `chunk_bytes` {}: a checkpoint of another version "
                    "is read by the motley that wrote it",
                    state_chunk_bytes));
  StateManifest manifest;
  manifest.revision = {static_cast<std::uint64_t>(count(document, "epoch", source)),
                       static_cast<std::uint64_t>(count(document, "step", source))};
  for (const auto& entry : member(document, "items", &Value::is_array, source).as_array()) {
    StateItem item{member(entry, "name", &Value::is_string, source).as_string(), count(entry, "bytes", source), {}};
    // Where the bytes are is never the file's to say.
    if (member(entry, "file", &Value::is_string, source).as_string() != file_name(manifest.items.size()))
      throw input_error(
          fmt::format("{}: the file of \"{}\" should be {}", source, item.name, file_name(manifest.items.size())),
          "the files are numbered in the order of `items`");
    for (const auto& chunk : member(entry, "sha256", &Value::is_array, source).as_array()) {
      if (!chunk.is_string())
        throw input_error(fmt::format("{}: a digest of \"{}\" is not a string", source, item.name), damaged);
      try {
        item.chunks.push_back(parse_digest(chunk.as_string()));
      } catch (Error& error) {
        throw error.prepend_context(fmt::format("{}: a digest of \"{}\"", source, item.name));
      }
    }
    manifest.items.push_back(std::move(item));
  }
  // The same checks as for what comes from the network.
  try {
    return decode_manifest(encode_manifest(manifest));
  } catch (const Error& error) {
    throw input_error(fmt::format("{}: {}", source, error.message()), damaged);
  }
}

}  // namespace

void write_checkpoint(const fs::path& folder, const StateSnapshot& snapshot) {
  const fs::path target = fs::absolute(folder).lexically_normal();
  const fs::path fresh = target.string() + ".new";
  std::error_code ignored;
  fs::remove_all(fresh, ignored);
  try {
    if (mkdir(fresh.c_str(), 0755) != 0) fail(fresh, "make the folder");
    for (std::size_t i = 0; i < snapshot.items.size(); ++i)
      OpenFile(fresh / file_name(i), O_WRONLY | O_CREAT | O_EXCL).write_synced(snapshot.items[i]);
    const std::string text = to_json(manifest_json(snapshot.manifest), 1) + "\n";
    OpenFile(fresh / "manifest.json", O_WRONLY | O_CREAT | O_EXCL).write_synced(std::as_bytes(std::span(text)));
    OpenFile(fresh, O_RDONLY | O_DIRECTORY).sync();
  } catch (const Error&) {
    fs::remove_all(fresh, ignored);  // a full disk is given its space back
    throw;
  }
  // In one step, so that at any moment there is a whole checkpoint under the name.
  const bool replaces = fs::exists(target);
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE) != 0)
    fail(target, "put the checkpoint in its place");
  OpenFile(target.parent_path(), O_RDONLY | O_DIRECTORY).sync();
  if (replaces) fs::remove_all(fresh, ignored);
}

StateSnapshot open_checkpoint(const fs::path& folder, CheckpointVerify verify) {
  StateSnapshot snapshot;
  snapshot.manifest = read_manifest(folder / "manifest.json");
  const auto files = std::make_shared<MappedFiles>();
  for (std::size_t i = 0; i < snapshot.manifest.items.size(); ++i) {
    const auto& item = snapshot.manifest.items[i];
    const fs::path path = folder / file_name(i);
    snapshot.items.push_back(files->map(path, item.bytes));
    for (std::size_t index = 0; verify == CheckpointVerify::contents && index < item.chunks.size(); ++index) {
      const auto [first, last] = chunk_range(item, index);
      if (sha256(snapshot.items.back().subspan(static_cast<std::size_t>(first),
                                               static_cast<std::size_t>(last - first))) != item.chunks[index])
        throw input_error(fmt::format("{}: bytes {} to {} are not those of the manifest", path.string(), first, last),
                          damaged);
    }
  }
  snapshot.owner = files;
  return snapshot;
}

}  // namespace motley
