#include "motley/base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "motley/base/error.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Some file systems cannot sync a folder, and say so: they have nothing to write.
bool synced(int descriptor) { return ::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP; }

// A device or a pipe, such as /dev/null: it is written to, and stays what it is.
bool is_special(const fs::path& path) {
  const fs::file_status status = fs::status(path);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

}  // namespace

void replace_file(const fs::path& path, std::string_view content, Readers readers) {
  const bool special = is_special(path);
  const std::string temporary = special ? path.string() : path.string() + fmt::format(".{}.tmp", ::getpid());
  const auto give_up = [&](std::string_view what) {
    const std::string why = std::strerror(errno);
    if (!special) ::unlink(temporary.c_str());
    throw Error(ErrorCode::environment, fmt::format("{}: {} ({})", path.string(), what, why),
                "check that the folder exists, that it is writable, and that the disk has space");
  };
  if (!special) ::unlink(temporary.c_str());  // of a process of the same number that was killed
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC | (special ? 0 : O_CREAT | O_EXCL),
                                readers == Readers::owner ? 0600 : 0666);
  if (descriptor < 0) give_up("cannot be written");
  const bool written = write_all(descriptor, content) && synced(descriptor);
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (!written) give_up("writing failed");
  if (special) return;
  if (::rename(temporary.c_str(), path.c_str()) != 0) give_up("cannot be replaced");
  sync_folder_of(path);
}

void sync_to_disk(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = descriptor >= 0 && synced(descriptor);
  const int cause = errno;
  if (descriptor >= 0) ::close(descriptor);
  errno = cause;
  if (!done) throw environment_error(fmt::format("cannot write {}", path.string()));
}

void sync_folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  sync_to_disk(folder.empty() ? "." : folder);
}

}  // namespace motley
