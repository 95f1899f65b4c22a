#include "motley/base/free_memory.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace motley {
namespace {

std::int64_t available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  for (std::int64_t kib = 0; in >> key >> kib; in.ignore(16, '\n'))
    if (key == "MemAvailable:") return kib * 1024;
  return 0;
}

// False where the file holds no number, as "max".
bool read_number(const char* file, std::int64_t& number) { return static_cast<bool>(std::ifstream(file) >> number); }

}  // namespace

std::int64_t free_memory_bytes() {
  const std::int64_t available = available_bytes();
  std::int64_t most = 0, used = 0;
  if (!read_number("/sys/fs/cgroup/memory.max", most) || !read_number("/sys/fs/cgroup/memory.current", used))
    return available;
  return std::clamp<std::int64_t>(most - used, 0, available);
}

}  // namespace motley
