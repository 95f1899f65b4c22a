#include "motley/base/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>

namespace motley {
namespace {

// Containers may allow a billion, and programs that this one starts may walk through all of them.
constexpr rlim_t enough = 1 << 16;

}  // namespace

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, enough));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace motley
