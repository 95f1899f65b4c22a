#include "motley/engine/spill/spill_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"

namespace motley {
namespace {

constexpr const char* other_folder = "name a folder on another disk in MOTLEY_SPILL_DIR";

std::string human(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

[[noreturn]] void no_room(const std::string& what, const std::filesystem::path& folder, std::int64_t bytes) {
  struct statvfs disk {};
  const std::int64_t free = ::statvfs(folder.c_str(), &disk) == 0
                                ? static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize)
                                : 0;
  throw Error(ErrorCode::environment,
              fmt::format("the disk of {} is full: {} take {}, and {} are free", folder.string(), what, human(bytes),
                          human(free)),
              fmt::format("free space there, or {}", other_folder));
}

FileDescriptor open_nameless(const std::filesystem::path& folder) {
  constexpr int flags = O_RDWR | O_CLOEXEC | O_DIRECT;
  FileDescriptor file(::open(folder.c_str(), flags | O_TMPFILE, 0600));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (folder / "motley-spill-XXXXXX").string();
  file = FileDescriptor(::mkostemp(name.data(), flags & ~O_RDWR));
  if (file) ::unlink(name.c_str());
  return file;
}

}  // namespace

std::filesystem::path spill_folder() {
  for (const char* name : {"MOTLEY_SPILL_DIR", "TMPDIR"})
    if (const char* folder = std::getenv(name); folder != nullptr && *folder != '\0') return folder;
  return "/var/tmp";
}

SpillBuffer::SpillBuffer(std::string_view what, std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(std::max(bytes, spill_alignment))),
      begin_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (begin_ == MAP_FAILED)
    throw Error(ErrorCode::environment, fmt::format("the machine does not give {} for {}", human(bytes), what),
                "end what uses the memory, or offer less of it (`--memory`)");
  ::madvise(begin_, bytes_, MADV_HUGEPAGE);  // only advice: spares page walks
}

SpillFile::SpillFile(std::string what, std::int64_t bytes, std::filesystem::path folder)
    : what_(std::move(what)), folder_(std::move(folder)), file_(open_nameless(folder_)) {
  if (!file_) {
    if (errno == EINVAL)
      throw Error(ErrorCode::environment,
                  fmt::format("the file system of {} cannot be read past the page cache", folder_.string()),
                  other_folder);
    throw environment_error(fmt::format("cannot make a file for {} in {}", what_, folder_.string()));
  }
  const int refused = bytes > 0 ? ::posix_fallocate(file_.get(), 0, bytes) : 0;
  if (refused == ENOSPC || refused == EFBIG) no_room(what_, folder_, bytes);
  errno = refused;
  if (refused != 0) throw environment_error(fmt::format("cannot reserve {} in {}", human(bytes), folder_.string()));
}

void SpillFile::write(std::int64_t offset, std::span<const std::byte> from) const {
  for (std::size_t done = 0; done < from.size();) {
    const ssize_t wrote =
        ::pwrite(file_.get(), from.data() + done, from.size() - done, offset + static_cast<std::int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == ENOSPC) no_room(what_, folder_, static_cast<std::int64_t>(from.size() - done));
    if (wrote <= 0)
      throw environment_error(
          fmt::format("cannot write {} of {} to the disk of {}", human(std::ssize(from)), what_, folder_.string()));
    done += static_cast<std::size_t>(wrote);
  }
}

// A file that ends early gives no bytes, and the next attempt at an unaligned rest none either.
void SpillFile::read(std::int64_t offset, std::span<std::byte> to) const {
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t got =
        ::pread(file_.get(), to.data() + done, to.size() - done, offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw environment_error(
          fmt::format("cannot read {} of {} from the disk of {}", human(std::ssize(to)), what_, folder_.string()));
    if (got == 0 || got % spill_alignment != 0)
      throw Error(ErrorCode::environment,
                  fmt::format("the disk of {} gave {} bytes of {} where {} were asked for, at {}", folder_.string(),
                              done + static_cast<std::size_t>(got), what_, to.size(), offset),
                  "check the disk, or " + std::string(other_folder));
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace motley
