#include "motley/base/environment_error.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

namespace motley {
namespace {

const char* what_to_do(int cause) {
  switch (cause) {
    case EMFILE: return "raise the limit of open files: ulimit -n";
    case ENFILE: return "the system's open files are used up: end other programs, or raise fs.file-max";
    case EAGAIN: return "raise the limit of processes and threads: ulimit -u, or that of the container";
    case ENOMEM:
    case ENOBUFS: return "free some memory, or raise the container's limit";
    case ENOSPC: return "free some space: on the disk, or in /dev/shm for shared memory";
    case EROFS:
    case EACCES:
    case EPERM: return "this user may not: look at the permissions, or run it where it may";
    default: return "";
  }
}

}  // namespace

Error environment_error(std::string_view doing, std::string hint) {
  const int cause = errno;
  if (hint.empty()) hint = what_to_do(cause);
  return Error(ErrorCode::environment, std::string(doing) + ": " + std::strerror(cause), std::move(hint));
}

}  // namespace motley
