#include "motley/base/environment_error.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

namespace motley {
namespace {

const char* what_to_do(int cause) {
  switch (cause) {
    case EMFILE: return "raise the limit of open files with ulimit -n";
    case ENFILE: return "the system has too many open files: end other programs, or raise fs.file-max";
    case EAGAIN: return "raise the limit of processes and threads with ulimit -u, or the limit of the container";
    case ENOMEM:
    case ENOBUFS: return "free memory, or raise the memory limit of the container";
    case ENOSPC: return "free space on the disk, or in /dev/shm for shared memory";
    case EROFS:
    case EACCES:
    case EPERM: return "change the permissions, or run as a user that has them";
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
