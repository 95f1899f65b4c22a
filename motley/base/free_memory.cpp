#include "motley/base/free_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "motley/base/proc_value.hpp"

namespace motley {
namespace {

// "24684084 kB"
std::int64_t available_bytes() {
  return 1024 * std::strtoll(proc_value("/proc/meminfo", "MemAvailable").value_or("0").c_str(), nullptr, 10);
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
